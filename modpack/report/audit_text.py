"""Audits as text: findings, then mocks, code, distributions, and totals.

Verifications show findings and code in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from modpack.core.names import root_of
from modpack.core.observations import MockEventKind, MockRisk
from modpack.core.plan import UseKind
from modpack.core.rules import Action
from modpack.core.text import counted, human_size, printable
from modpack.diagnostics import Diagnostic, Severity
from modpack.errors import listed, tally
from modpack.report.audit_facts import (
    LICENSE,
    AuditFacts,
    DistributionFacts,
    MockFacts,
    importers_by_name,
)
from modpack.report.facts import UseFacts, used_name
from modpack.report.finding_groups import FindingGroup, count_findings, group_findings
from modpack.report.format import indented, table, title
from modpack.report.text import distinct
from modpack.trust.code_listing import CodeListing

_RISK_STYLES = {
    MockRisk.CALLED: "bold red",
    MockRisk.NOT_OBSERVED: "yellow",
    MockRisk.USED_AT_IMPORT: "green",
    MockRisk.UNTOUCHED: "green",
}
_COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "blue"}
_MOST = {Severity.INFO: 4}
"""Limit of the findings of one code, by severity."""
_SHOWN_PARTS = 5
_SHOWN_PLACES = 8
_SHOWN_ROOTS = 8
_SHOWN_SUBJECTS = 6
_SHOWN_USES = 20
_HOW = {
    UseKind.BASE_CLASS: "a base class",
    UseKind.DECORATOR: "a decorator",
    UseKind.MODULE_LEVEL: "used at import time",
    UseKind.ANNOTATION: "in an annotation",
    UseKind.FUNCTION_BODY: "in the function",
    UseKind.TYPE_CHECK: "checked in the function",
}


def _mocks(audit: AuditFacts) -> Iterator[RenderableType]:
    """Return each mocked module with its importers, its uses, and its events in the self-test."""
    if not audit.mocks:
        return
    yield ""
    yield title(f"mocked: {counted(len(audit.mocks), 'module')}", "yellow")
    for mock in audit.mocks:
        head = Text.assemble((printable(mock.module), "bold"), "  ")
        head.append(mock.observed, _RISK_STYLES[mock.risk])
        # The reader must see whose word the observation is.
        is_observed = mock.risk is not MockRisk.NOT_OBSERVED
        head.append(" (recorded by the package)" if is_observed else "", "dim")
        head.append(f"  {printable(mock.rule or 'rule not recorded')}", "dim")
        yield indented(head, 2)
        yield from (indented(each, 4) for each in _details(mock))


def describe_use(use: UseFacts) -> str:
    """Return a short description of a use of a mocked name."""
    in_function = not use.kind.is_at_import
    scope = f"{'' if in_function else ', in'} {use.scope}" if use.scope else ""
    through = f"; through {', '.join(use.via)}" if use.via else ""
    return f"{_HOW[use.kind]}{scope}{through}"


def describe_events(mock: MockFacts) -> str:
    """Return the accesses of the self-test to a mocked module, or the reason for their absence."""
    # A use raises in the loading environment, too. Taking a name does not.
    used = [each for each in mock.events if each.kind is MockEventKind.USED]
    if used:
        return f"the self-test used it: {', '.join(dict.fromkeys(map(str, used)))}"
    names = [each.name for each in mock.events if each.kind is MockEventKind.NAMED]
    if names:
        return f"the self-test took names from it: {', '.join(dict.fromkeys(names))}"
    if mock.runs:
        return (
            "the self-test only imported it" if mock.events else "the self-test did not import it"
        )
    return "no run with example inputs is recorded. Pass example_inputs when you export the model"


def _details(mock: MockFacts) -> Iterator[RenderableType]:
    importers = importers_by_name(mock)
    if importers:
        places = [f"{each.location} ({each.kind.value})" for each in importers]
        yield Text(printable(f"imported by {listed(places, _SHOWN_PLACES)}"))
    if mock.uses:
        yield _uses(mock.uses)
    elif importers:
        yield Text("no use of its names was found", "dim")
    yield Text(printable(describe_events(mock)), "dim")


def _uses(uses: Sequence[UseFacts]) -> RenderableType:
    rows = table(("", "left"), ("", "left"), ("dim", "left"))
    for use in uses[:_SHOWN_USES]:
        rows.add_row(
            printable(use.location), printable(used_name(use)), printable(describe_use(use))
        )
    left = len(uses) - _SHOWN_USES
    if left > 0:
        rows.add_row("", f"{left} more", "--json lists them")
    return rows


def by_severity(
    findings: Sequence[Diagnostic], most: Mapping[Severity, int]
) -> Iterator[RenderableType]:
    """Yield the findings, grouped by severity and code.

    Args:
        findings: The findings, in any order.
        most: Limit of the shown findings of one code, by severity.
    """
    by_rank = groupby(group_findings(findings), key=lambda group: group.severity)
    for severity, groups in by_rank:
        alike = list(groups)
        total = sum(len(group.findings) for group in alike)
        yield ""
        yield title(counted(total, severity.value), _COLORS[severity])
        for group in alike:
            yield indented(Text(group.code, "bold"), 2)
            yield from _of_one_code(group, most.get(severity, total))


def _of_one_code(group: FindingGroup, most: int) -> Iterator[RenderableType]:
    """Yield the findings of one code. A hint that all of them share is shown once."""
    for each in group.findings[:most]:
        yield indented(Text(printable(each.summary)), 4)
        if each.hint and not group.hint:
            yield _hint_line(each.hint)
    if len(group.findings) > most:
        others = distinct(group.roots(most), _SHOWN_ROOTS)
        text = f"{len(group.findings) - most} more, about {others}; --json lists them"
        yield indented(Text(text, "dim"), 4)
    if group.hint:
        yield _hint_line(group.hint)


def outcome(findings: Sequence[Diagnostic], reasons: Sequence[str]) -> Text:
    """Return the last line of a report. A passed check may still have warnings."""
    if reasons:
        return Text(f"failed: {', '.join(reasons)}", "bold red")
    warnings = sum(each.severity is Severity.WARNING for each in findings)
    more = f", with {counted(warnings, 'warning')}" if warnings else ""
    return Text(f"passed{more}", "bold green")


def _hint_line(hint: str) -> RenderableType:
    """Return the line that shows a hint, which may quote the package."""
    return indented(Text(f"-> {printable(hint)}", "dim"), 4)


def code_part(listing: CodeListing | None) -> Iterator[RenderableType]:
    """Yield a summary of a package's code, dangerous names first and in red."""
    if listing is None:
        return
    yield ""
    if listing.is_empty:
        yield Text("code  none: the package contains only data", "bold")
        return
    yield Text("code  runs with all rights of the process that loads it", "bold")
    for record, names in listing.names().items():
        # Before the counts, which could bury one dangerous name among hundreds.
        bad = [name for name in names if name.is_dangerous]
        if bad:
            text = f"{record} names {', '.join(map(str, bad))}"
            yield indented(Text(printable(text), "bold red"), 2)
    for text in _summaries(listing):
        yield indented(Text(printable(text)), 2)


def _summaries(listing: CodeListing) -> Iterator[str]:
    if listing.sources:
        # Hundreds of sources are common, so only the number of each top-level name is shown.
        roots = (record.partition("/")[0].removesuffix(".py") for record in listing.sources)
        yield f"{counted(len(listing.sources), 'Python source')}: {tally(roots, _SHOWN_PARTS)}"
    for kind, found in (("native library", listing.native), ("program", listing.programs)):
        if found:
            yield f"{counted(len(found), kind)}: {listed(found, _SHOWN_PARTS)}"
    for record, names in listing.names().items():
        roots = (root_of(name.module) for name in names)
        functions = len(listing.pickles[record].sources)
        more = f", and contains the source of {counted(functions, 'function')}" if functions else ""
        total = f"{counted(len(names), 'global')} beyond plain data"
        yield f"{record} names {total}: {tally(roots, _SHOWN_PARTS)}{more}"


def audit_report(audit: AuditFacts) -> RenderableType:
    """Return the report of an audit.

    Args:
        audit: The audit, with the results of its gates.
    """
    return Group(
        _head(audit),
        *_self_test(audit),
        *by_severity(audit.findings, _MOST),
        *_mocks(audit),
        *code_part(audit.code),
        *_distributions(audit.distributions),
        "",
        _totals(audit),
        *_verdict(audit),
    )


def _head(audit: AuditFacts) -> RenderableType:
    package = audit.package
    subject = Text(printable(package.path), "bold")
    made = printable(", ".join(filter(None, (package.format, package.made_with))))
    return Text.assemble(subject, f"  {human_size(package.size_bytes)}  ", (made, "dim"))


def _self_test(audit: AuditFacts) -> Iterator[RenderableType]:
    """Yield the line about a passed self-test. A failed or missing one is a finding."""
    self_test = audit.package.self_test
    if self_test is not None and self_test.passed:
        examples = counted(len(self_test.cases), "example") if self_test.cases else "no examples"
        tried = f"{examples}, namespace {self_test.namespace}"
        how = "" if self_test.deterministic else ", structure only"
        yield Text(printable(f"the self-test passed{how} ({tried})"), "green")
    if audit.package.waiting is not None:
        yield Text(printable(f"imports wait: {audit.package.waiting}"))


def _distributions(distributions: Sequence[DistributionFacts]) -> Iterator[RenderableType]:
    if not distributions:
        return
    yield ""
    yield title(counted(len(distributions), "distribution"), "cyan")
    rows = table(("", "left"), ("", "left"), ("", "left"), ("dim", "left"))
    for each in distributions:
        license = printable(each.license or "license unknown")
        license += ", an editable install" if each.editable else ""
        parts = (
            [f"{each.interned} interned, {human_size(each.size_bytes)}"] if each.interned else []
        )
        parts += [f"{each.extern} extern"] if each.extern else []
        name = f"{each.name}=={each.version}" if each.version else each.name
        later = "not needed to load" if each.is_optional else ""
        rows.add_row(printable(name), license, ", ".join(parts), later)
    yield indented(rows, 2)


def _totals(audit: AuditFacts) -> RenderableType:
    actions = Counter(facts.action for facts in audit.modules)
    counts = [f"{actions[each]} {each.past}" for each in Action if actions[each]]
    storages = audit.package.storages
    parts = [
        f"{counted(len(audit.modules), 'module')} ({', '.join(counts) or 'none'})",
        counted(len(audit.distributions), "distribution"),
        f"{human_size(storages.size_bytes)} in {counted(storages.count, 'tensor storage')}",
        count_findings(audit.findings),
    ]
    return Text("; ".join(parts))


def _verdict(audit: AuditFacts) -> Iterator[RenderableType]:
    fired = [each for each in audit.gates if each.fired]
    for each in fired:
        subjects = distinct((finding.subject for finding in each.findings), _SHOWN_SUBJECTS)
        text = f"--fail-on {printable(each.gate)}: {counted(len(each.findings), 'finding')}"
        yield Text.assemble((text, "bold red"), f" ({subjects})")
        for finding in each.findings:
            if finding.code == LICENSE:  # no other finding of the audit says it
                yield indented(Text(printable(finding.message)), 2)
    reasons = [counted(len(audit.errors), "error")] if audit.errors else []
    reasons += [f"{counted(len(fired), 'gate')} fired"] if fired else []
    yield outcome(audit.findings, reasons)
