"""JSON documents of audits, verifications, and `why`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from modpack.core.codec import Line
from modpack.report.json_output import CodeFacts, code_facts, pick

if TYPE_CHECKING:
    from modpack.core.observations import MockEvent, MockRisk
    from modpack.core.plan import MockUse, UseKind
    from modpack.core.rules import Action, RuleOrigin
    from modpack.diagnostics import Diagnostic
    from modpack.report.audit import AuditResult, Gate
    from modpack.report.audit_facts import AuditFacts, DistributionFacts, MockFacts
    from modpack.report.facts import (
        ImporterFacts,
        ModuleFacts,
        PackageFacts,
        Provider,
        ResourceFacts,
    )
    from modpack.report.verify import CheckFacts, VerifyFacts
    from modpack.report.why import Chain, ImportLink, ModuleStatus, Why
    from modpack.security.signing_envelope import ValidSignature


class GateResult(NamedTuple):
    """A gate of ``--fail-on``.

    Attributes:
        gate: The gate, as it was given.
        fired: Whether it fired.
        findings: The findings that made it fire.
    """

    gate: str
    fired: bool
    findings: tuple[Diagnostic, ...]


class UseFacts(NamedTuple):
    """A use of a mocked module's name.

    Attributes:
        name: Dotted name, relative to the module. Empty for the module itself.
        importer: Module or saved object that contains the use.
        path: Record or file of the importer, or null if unknown.
        line: Line of the use.
        location: Path and line.
        kind: How the name is used.
        scope: Qualified name of the surrounding function or class. Empty at module level.
        via: Interned modules through which the importer gets the name, in order.
    """

    name: str
    importer: str
    path: str | None
    line: Line
    location: str
    kind: UseKind
    scope: str
    via: tuple[str, ...]


class MockDetails(NamedTuple):
    """A mocked module.

    Attributes:
        module: Path of the module.
        rule: Rule that mocked it. Null if the package does not record it.
        risk: What the runs that the package records showed.
        importers: Modules and saved objects that import it.
        uses: Uses of its names in packaged code, those in classes of saved objects first.
        chain: Import chain from a saved object to the first use.
        runs: Number of examples that the recorded self-test ran successfully.
        events: What the recorded self-test did with it.
    """

    module: str
    rule: str | None
    risk: MockRisk
    importers: tuple[ImporterFacts, ...]
    uses: tuple[UseFacts, ...]
    chain: tuple[str, ...]
    runs: int
    events: tuple[MockEvent, ...]


class EnvironmentFacts(NamedTuple):
    """The export environment.

    Attributes:
        python: Version of Python, or null if not recorded.
        implementation: Implementation of Python, such as ``CPython``, or null.
        platform: Operating system, as ``sys.platform`` names it, or null.
        machine: Architecture of the processor, or null.
        torch: Version of torch, or null.
    """

    python: str | None
    implementation: str | None
    platform: str | None
    machine: str | None
    torch: str | None


class AuditDocument(NamedTuple):
    """An audit of a package or of a target.

    Attributes:
        path: The package. Null for a target.
        target: The target. Null for a package.
        passed: Whether there are no problems, no errors, and no gates that fired.
        gates: The gates of ``--fail-on``.
        findings: Findings, errors first.
        problems: Reasons why a target cannot be exported. Empty for a package.
        mocks: The mocked modules, the worst risk first.
        modules: All modules, sorted by path.
        distributions: Distributions that the modules belong to, by name.
        files: Files that were included with the code.
        notes: Hazards and remarks from the export.
        code: The code in the package. Null for a target.
        environment: The export environment. Null for a target.
        package: The package. Null for a target.
        verified: Whether one of the keys of ``--key`` signed the package. If not, no gate passes on
            its observations of mocks.
    """

    path: str | None
    target: str | None
    passed: bool
    gates: tuple[GateResult, ...]
    findings: tuple[Diagnostic, ...]
    problems: tuple[Diagnostic, ...]
    mocks: tuple[MockDetails, ...]
    modules: tuple[ModuleFacts, ...]
    distributions: tuple[DistributionFacts, ...]
    files: tuple[ResourceFacts, ...]
    notes: tuple[Diagnostic, ...]
    code: CodeFacts | None
    environment: EnvironmentFacts | None
    package: PackageFacts | None
    verified: bool


def audit_document(audit: AuditFacts, gates: Iterable[Gate], result: AuditResult) -> AuditDocument:
    """Return the document of an audit.

    Args:
        audit: The audit.
        gates: All gates that were given.
        result: The outcome of the audit.
    """
    from modpack.report.audit_facts import files_of

    files, fired = files_of(audit), dict(result.fired)
    return pick(
        AuditDocument,
        audit,
        path=None if audit.package is None else audit.subject,
        target=audit.subject if audit.package is None else None,
        passed=result.passed,
        gates=tuple(GateResult(each.text, each in fired, fired.get(each, ())) for each in gates),
        mocks=tuple(_mock_details(mock, files) for mock in audit.mocks),
        code=None if audit.code is None else code_facts(audit.code),
        environment=audit.environment and pick(EnvironmentFacts, audit.environment),
        verified=audit.is_verified,
    )


def _mock_details(mock: MockFacts, files: Mapping[str, str]) -> MockDetails:
    uses = tuple(_use_facts(use, files) for use in mock.uses)
    return pick(MockDetails, mock, uses=uses)


def _use_facts(use: MockUse, files: Mapping[str, str]) -> UseFacts:
    from modpack.report.audit_facts import location_in

    return pick(
        UseFacts,
        use,
        path=files.get(use.importer),
        location=location_in(files, use.importer, use.line),
    )


class WhyDocument(NamedTuple):
    """The reasons why a module is in a package, or is not.

    Attributes:
        path: The package, as the user named it.
        module: Path of the module.
        status: What the package has to do with the module.
        action: The decision, or null.
        rule: Rule that matched. Null without a decision, or if the package does not record it.
        origin: Origin of the rule, or null.
        overridden_by: Hook that changed the action of the rule, or null.
        hooks: Match hooks that were called for the module, in order.
        provided_by: Provider of the module at export, or null if not recorded.
        distribution: Distribution that contained the module at export, or null.
        version: Version of the distribution, or null.
        chains: Import chains that lead to the module, the shortest first.
        every_chain: Whether all chains were requested (``--all``).
        omitted_chains: Number of further chains.
        search_complete: Whether ``omitted_chains`` is exact. If not, there are at least so many.
        equally_short_chains: Number of further chains that start at the same objects and are as
            short.
        importers: All locations that import the module directly.
        notes: Notes about the module.
        observed: What the recorded self-test showed about the module, or null.
    """

    path: str
    module: str
    status: ModuleStatus
    action: Action | None
    rule: str | None
    origin: RuleOrigin | None
    overridden_by: str | None
    hooks: tuple[str, ...]
    provided_by: Provider | None
    distribution: str | None
    version: str | None
    chains: tuple[Chain, ...]
    every_chain: bool
    omitted_chains: int
    search_complete: bool
    equally_short_chains: int
    importers: tuple[ImportLink, ...]
    notes: tuple[Diagnostic, ...]
    observed: str | None


def why_document(found: Why, path: str, every_chain: bool) -> WhyDocument:
    """Return the document of ``modpack why``.

    Args:
        found: The reasons.
        path: The package, as the user named it.
        every_chain: Whether all chains were requested.
    """
    from modpack.core.rules import UNRECORDED

    decision, chains, provider = found.decision, found.chains, found.provider
    rule = decision.rule if decision is not None else None
    rule = None if rule is None or rule.label == UNRECORDED else rule
    return WhyDocument(
        path,
        found.module,
        found.status,
        decision.action if decision is not None else None,
        str(rule) if rule is not None else None,
        rule.origin if rule is not None else None,
        decision.overridden_by if decision is not None else None,
        decision.hooks if decision is not None else (),
        provider.kind if provider is not None else None,
        provider.distribution if provider is not None else None,
        provider.version if provider is not None else None,
        chains.chains,
        every_chain,
        chains.omitted,
        chains.is_complete,
        chains.equally_short,
        found.importers,
        found.notes,
        found.observed,
    )


class VerifyDocument(NamedTuple):
    """The verification of a package.

    Attributes:
        path: The package, as the user named it.
        passed: Whether no errors were found.
        format: Format of the package, or null if it could not be read.
        digest: Digest of the package, or null if it could not be computed.
        size_bytes: Size of the file, or of all files in a directory. 0 if it could not be read.
        checks: The checks, in order.
        findings: Findings, errors first.
        signatures: Signatures that were requested and are valid.
        code: The code in the package, or null if it could not be read.
    """

    path: str
    passed: bool
    format: str | None
    digest: str | None
    size_bytes: int
    checks: tuple[CheckFacts, ...]
    findings: tuple[Diagnostic, ...]
    signatures: tuple[ValidSignature, ...]
    code: CodeFacts | None


def verify_document(facts: VerifyFacts) -> VerifyDocument:
    """Return the document of a verification."""
    return pick(
        VerifyDocument,
        facts,
        path=facts.subject,
        passed=facts.is_accepted,
        format=facts.format or None,
        digest=facts.digest or None,
        code=None if facts.code is None else code_facts(facts.code),
    )
