"""Audits of packages, and gates: conditions that fail an audit in CI."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final

from modpack.archive.base import Archive
from modpack.archive.reader import opened
from modpack.archive.records import load_environment
from modpack.core.observations import MockEvent, MockRisk, observed_risk
from modpack.core.plan import Plan
from modpack.core.policy import Signer
from modpack.core.process import phase
from modpack.core.rules import Action
from modpack.core.selftest import SelfTestRecord
from modpack.diagnostics import Diagnostic, Severity, diagnostic_codes, implied_codes
from modpack.report.audit_facts import (
    LICENSE,
    AuditFacts,
    GateResult,
    MockFacts,
    files_of,
)
from modpack.report.audit_findings import (
    dangerous_names,
    find_all,
    is_licensed_under,
    pickle_findings,
)
from modpack.report.distribution_index import (
    distributions_of,
    with_distributions,
)
from modpack.report.facts import (
    ModuleFacts,
    UseFacts,
)
from modpack.report.package_info import facts_of, read_checked_manifest, recorded_plan
from modpack.security.signing import check_signatures
from modpack.trust.code_listing import list_code

_SEVERITIES: Final = tuple(severity.value for severity in Severity)
_WORST_FIRST: Final = list(reversed(MockRisk))


def mock_facts(
    plan: Plan, self_test: SelfTestRecord | None, modules: Sequence[ModuleFacts]
) -> tuple[MockFacts, ...]:
    """Return the facts about every mocked module, the highest risk first.

    Args:
        plan: The plan, with the uses of mocked modules.
        self_test: The package's self-test, if any.
        modules: All modules.
    """
    files = files_of(modules)
    uses: defaultdict[str, list[UseFacts]] = defaultdict(list)
    for use in plan.mock_uses:
        found = UseFacts(**use._asdict(), path=files.get(use.importer))
        uses[use.module].append(found)
    events: defaultdict[str, list[MockEvent]] = defaultdict(list)
    for event in self_test.observations.mock_events if self_test is not None else ():
        events[event.module].append(event)
    runs = self_test.runs if self_test is not None else 0
    facts = [
        MockFacts(
            each.module,
            each.rule,
            importers=each.importers,
            uses=tuple(uses[each.module]),
            risk=observed_risk(events[each.module], runs),
            events=tuple(events[each.module]),
            runs=runs,
        )
        for each in modules
        if each.action is Action.MOCK
    ]
    return tuple(sorted(facts, key=lambda each: (_WORST_FIRST.index(each.risk), each.module)))


def audit_package(
    source: str | os.PathLike[str] | Archive, keys: Sequence[Signer] = ()
) -> AuditFacts:
    """Audit a package file without executing or unpickling its contents.

    A ``torch.package`` archive records neither rules, nor versions, nor imports.

    Args:
        source: A package file, or the folder of an unzipped package, of modpack or torch.package;
            or an open one, which stays open.
        keys: The trusted signers. If any are given, one of them must have signed the package.
            Without a checked signature, no gate passes on the package's own observations of mocks.

    Raises:
        TypeError: If ``source`` is not a path.
        SignatureError: If the signature of one of the signers is required and missing or invalid.
        UnsupportedVersionError: If a newer version of modpack wrote the package.
        ArchiveError: If the file is not a package, or is damaged.
    """
    with opened(source) as archive:
        manifest = read_checked_manifest(archive)
        # Before anything is read from records that only a signature makes trustworthy.
        check_signatures(archive, keys, archive.path)
        plan = recorded_plan(archive, manifest)
        package = facts_of(archive, manifest, plan)
        environment = load_environment(archive, manifest)
        modules = with_distributions(package.modules, archive, plan, manifest, environment)
        with phase("reading pickles and sources"):
            code = list_code(archive, manifest)
            # Pickles are scanned for all packages: a manifest only proves that they are unchanged.
            scanned = [
                *pickle_findings(archive, manifest, code),
                *dangerous_names(code),
            ]
    # An extern module without a location was not installed in the export environment.
    externs = (plan.decisions[module] for module in plan.modules(Action.EXTERN))
    audit = AuditFacts(
        package,
        modules,
        mocks=mock_facts(plan, package.self_test, modules),
        distributions=distributions_of(modules, plan.graph),
        notes=plan.notes,
        graph=plan.graph,
        environment=environment,
        absent=frozenset(each.module for each in externs if each.location is None),
        files=tuple(each for each in package.resources if each.kind.comes_with_code),
        code=code,
        # With keys, a missing or invalid signature has raised an error above.
        is_verified=bool(keys),
    )
    return replace(audit, findings=find_all(audit, scanned))


@dataclass(frozen=True)
class Gate:
    """A condition on findings that fails an audit.

    Attributes:
        text: The gate, as passed to ``--fail-on``.
        code: The code that it fires on, including codes that imply it. None for other gates.
        severity: The lowest severity that it fires on. None for other gates.
        license: The license pattern that it fires on. None for other gates.
    """

    text: str
    code: str | None = None
    severity: Severity | None = None
    license: str | None = None

    def findings(self, audit: AuditFacts) -> tuple[Diagnostic, ...]:
        """Return the findings that make the gate fire."""
        found = audit.findings
        if self.license is not None:
            # A license is no finding of its own. Only a gate makes it one.
            return tuple(
                Diagnostic.from_code(
                    LICENSE,
                    each.name,
                    f"the license of {each.name} {each.version} is {each.license}",
                )
                for each in audit.distributions
                if each.license is not None and is_licensed_under(each.license, self.license)
            )
        if self.code is not None:
            # Worse codes imply milder ones: a gate on mock-not-observed fires on mock-called, too.
            return tuple(each for each in found if self.code in implied_codes(each.code))
        worst = self.severity.rank if self.severity is not None else -1
        return tuple(each for each in found if each.severity.rank <= worst)


def parse_gate(text: str) -> Gate:
    """Return the gate for a value of ``--fail-on``.

    Args:
        text: A code (``mock-called``), the lowest severity to fail on (``warning``), or
            ``license:`` and a pattern (``license:GPL*``).

    Raises:
        ValueError: If ``text`` is none of these.

    >>> parse_gate("license:GPL*").license
    'GPL*'
    >>> parse_gate("mock-caled")
    Traceback (most recent call last):
        ...
    ValueError: unknown code 'mock-caled'. Did you mean 'mock-called'?
    """
    word, colon, glob = (part.strip() for part in text.partition(":"))
    if word == LICENSE:
        if not glob:
            raise ValueError(f"{text!r} has no license pattern. Use, for example, license:GPL*.")
        return Gate(text, license=glob)
    if word in _SEVERITIES and not colon:
        return Gate(text, severity=Severity(word))
    if word in diagnostic_codes("audit") and not colon:
        return Gate(text, code=word)
    raise ValueError(_explain_unknown_gate(text, word, bool(colon)))


def judge(audit: AuditFacts, gates: Iterable[Gate] = ()) -> AuditFacts:
    """Return an audit with the results of gates, which decide whether it passes."""
    found = ((gate, gate.findings(audit)) for gate in gates)
    results = (GateResult(gate.text, bool(findings), findings) for gate, findings in found)
    return replace(audit, gates=tuple(results))


def _explain_unknown_gate(text: str, word: str, has_pattern: bool) -> str:
    codes = diagnostic_codes("audit")
    if has_pattern and word in codes:
        return f"{text!r}: only license: accepts a pattern after the colon."
    near = get_close_matches(word, [*codes, *_SEVERITIES], n=1)
    if not near:
        return f"unknown code {text!r}. The reference page on diagnostics lists all codes."
    meant = f"{LICENSE}:GPL*" if near[0] == LICENSE else near[0]
    return f"unknown code {text!r}. Did you mean {meant!r}?"
