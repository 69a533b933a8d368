"""Audits as text: problems and findings, then mocks, modules, and totals.

Verifications show findings and code in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from modpack.archive.layout import RUNTIME_MODULE
from modpack.core.environment import is_optional, needed_at_once
from modpack.core.names import root_of
from modpack.core.observations import MockEventKind, MockRisk
from modpack.core.plan import MockUse, UseKind
from modpack.core.rules import Action, Owner
from modpack.core.text import counted, human_size, printable
from modpack.diagnostics import Diagnostic, Severity
from modpack.errors import listed
from modpack.pickling.allowlist import is_dangerous
from modpack.report.audit import AuditResult
from modpack.report.audit_facts import (
    AuditFacts,
    MockFacts,
    files_of,
    importers_by_name,
    location_in,
)
from modpack.report.facts import ModuleFacts, used_name
from modpack.report.format import indented, relative, table, title
from modpack.report.text import STYLES, distinct, problems_report, size_of, summed
from modpack.trust.code_listing import CodeListing

_RISK_STYLES = {
    MockRisk.CALLED: "bold red",
    MockRisk.NOT_OBSERVED: "yellow",
    MockRisk.USED_AT_IMPORT: "green",
    MockRisk.UNTOUCHED: "green",
}
_COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "blue"}
_LATER = "not needed to load"
_MAX_OF_A_NOTE = 4
_SHORT_CHAIN = 2
"""A chain that is not worth showing: the saved object, and the module of its class."""
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


def _mocks(audit: AuditFacts, folder: Path | None) -> Iterator[RenderableType]:
    """Return each mocked module with its importers, its uses, and its events in the self-test."""
    if not audit.mocks:
        return
    files = files_of(audit)
    yield ""
    yield title(f"mocked: {counted(len(audit.mocks), 'module')}", "yellow")
    for mock in audit.mocks:
        head = Text.assemble((printable(mock.module), "bold"), "  ")
        head.append(mock.observed, _RISK_STYLES[mock.risk])
        is_observed = mock.risk is not MockRisk.NOT_OBSERVED
        head.append(" (recorded by the package)" if is_observed else "", "dim")
        head.append(f"  {printable(mock.rule or 'rule not recorded')}", "dim")
        yield indented(head, 2)
        yield from (indented(each, 4) for each in _details(mock, files, folder))


def describe_use(use: MockUse) -> str:
    """Return a short description of a use of a mocked name."""
    in_function = not use.kind.is_at_import
    scope = f"{'' if in_function else ', in'} {use.scope}" if use.scope else ""
    through = f"; through {', '.join(use.via)}" if use.via else ""
    return f"{_HOW[use.kind]}{scope}{through}"


def describe_events(mock: MockFacts) -> str:
    """Return the accesses of the self-test to a mocked module, or the reason for their absence."""
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


def _details(
    mock: MockFacts, files: Mapping[str, str], folder: Path | None
) -> Iterator[RenderableType]:
    importers = importers_by_name(mock)
    if importers:
        places = [f"{relative(each.location, folder)} ({each.kind.value})" for each in importers]
        yield Text(printable(f"imported by {listed(places, _SHOWN_PLACES)}"))
    if mock.uses:
        yield _uses(mock.uses, files, folder)
    elif importers:
        yield Text("no use of its names was found", "dim")
    if len(mock.chain) > _SHORT_CHAIN:
        yield Text(printable(f"the first use is reached through {' -> '.join(mock.chain)}"), "dim")
    yield Text(printable(describe_events(mock)), "dim")


def _uses(uses: Sequence[MockUse], files: Mapping[str, str], folder: Path | None) -> RenderableType:
    rows = table(("", "left"), ("", "left"), ("dim", "left"))
    for use in uses[:_SHOWN_USES]:
        location = relative(location_in(files, use.importer, use.line), folder)
        rows.add_row(printable(location), printable(used_name(use)), printable(describe_use(use)))
    left = len(uses) - _SHOWN_USES
    if left > 0:
        rows.add_row("", f"{left} more", "--json lists them")
    return rows


def by_severity(
    findings: Sequence[Diagnostic],
    of_one_code: Callable[[Sequence[Diagnostic]], Iterator[RenderableType]],
) -> Iterator[RenderableType]:
    """Yield the findings, grouped by severity and code.

    Args:
        findings: The findings, in any order.
        of_one_code: Renders the findings of one code.
    """
    for severity in Severity:
        chosen = [each for each in findings if each.severity is severity]
        if not chosen:
            continue
        yield ""
        yield title(counted(len(chosen), severity.value), _COLORS[severity])
        for code in dict.fromkeys(each.code for each in chosen):
            yield indented(Text(code, "bold"), 2)
            yield from of_one_code([each for each in chosen if each.code == code])


def left_out(count: int, about: str = "") -> RenderableType:
    """Return the line that counts the findings that are not shown, and names their subjects."""
    subjects = f", about {about}" if about else ""
    return indented(Text(f"{count} more{subjects}; --json lists them", "dim"), 4)


def hint_line(hint: str) -> Iterator[RenderableType]:
    """Yield the line that shows a hint, which may quote the package; nothing without a hint."""
    if hint:
        yield indented(Text(f"-> {printable(hint)}", "dim"), 4)


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
        bad = [name for name in names if is_dangerous(name.module, name.name)]
        if bad:
            text = f"{record} names {', '.join(map(str, bad))}"
            yield indented(Text(printable(text), "bold red"), 2)
    for text in _summaries(listing):
        yield indented(Text(printable(text)), 2)


def _summaries(listing: CodeListing) -> Iterator[str]:
    if listing.sources:
        roots = Counter(record.partition("/")[0].removesuffix(".py") for record in listing.sources)
        counts = [f"{root} {count}" for root, count in roots.most_common()]
        yield f"{counted(len(listing.sources), 'Python source')}: {listed(counts, _SHOWN_PARTS)}"
    for kind, found in (("native library", listing.native), ("program", listing.programs)):
        if found:
            yield f"{counted(len(found), kind)}: {listed(found, _SHOWN_PARTS)}"
    for record, names in listing.names().items():
        roots = Counter(root_of(name.module) for name in names)
        counts = [f"{root} {count}" for root, count in roots.most_common()]
        functions = len(listing.pickles[record].sources)
        more = f", and contains the source of {counted(functions, 'function')}" if functions else ""
        total = f"{counted(len(names), 'global')} beyond plain data"
        yield f"{record} names {total}: {listed(counts, _SHOWN_PARTS)}{more}"


def audit_report(
    audit: AuditFacts, verdict: AuditResult, folder: Path | None = None
) -> RenderableType:
    """Return the report of an audit.

    Args:
        audit: The audit.
        verdict: Its verdict.
        folder: Paths below this folder are shown relative to it.
    """
    return Group(
        _head(audit),
        *_self_test(audit),
        *(["", problems_report(audit.problems, True, folder)] if audit.problems else ()),
        *by_severity(audit.findings, partial(_of_one_code, audit, folder)),
        *_mocks(audit, folder),
        *code_part(audit.code),
        *_modules(audit),
        "",
        _totals(audit),
        *_verdict(verdict, audit),
    )


def _head(audit: AuditFacts) -> RenderableType:
    subject = Text(printable(audit.subject), "bold")
    if audit.package is None:
        return Text.assemble(subject, ("  a plan; no file was written", "dim"))
    package = audit.package
    made = printable(", ".join(filter(None, (package.format, package.made_with))))
    return Text.assemble(subject, f"  {human_size(package.size_bytes)}  ", (made, "dim"))


def _self_test(audit: AuditFacts) -> Iterator[RenderableType]:
    """Yield the line about a passed self-test. A failed or missing one is a finding."""
    self_test = audit.package.self_test if audit.package is not None else None
    if self_test is not None and self_test.passed:
        examples = counted(len(self_test.cases), "example") if self_test.cases else "no examples"
        tried = f"{examples}, namespace {self_test.namespace}"
        how = "" if self_test.deterministic else ", structure only"
        yield Text(printable(f"the self-test passed{how} ({tried})"), "green")


def _of_one_code(
    audit: AuditFacts, folder: Path | None, findings: Sequence[Diagnostic]
) -> Iterator[RenderableType]:
    if audit.is_settled(findings[0]):
        subjects = distinct((each.subject for each in findings), _SHOWN_SUBJECTS)
        yield indented(Text(f"{subjects}: the self-test passed with the packaged modules"), 4)
        return
    is_same = len({each.hint for each in findings}) == 1
    is_short = findings[0].severity is Severity.INFO and len(findings) > _MAX_OF_A_NOTE
    shown = findings[: _MAX_OF_A_NOTE if is_short else None]
    for each in shown:
        location = f"{relative(each.location, folder)}: " if each.location else ""
        yield indented(Text(printable(location + each.message)), 4)
        if not is_same:
            yield from hint_line(each.hint)
    if left := len(findings) - len(shown):
        others = dict.fromkeys(root_of(each.subject) for each in findings[len(shown) :])
        yield left_out(left, distinct(others, _SHOWN_ROOTS))
    if is_same:
        yield from hint_line(findings[0].hint)


def _modules(audit: AuditFacts) -> Iterator[RenderableType]:
    at_once = needed_at_once(audit.graph)
    for action in (Action.INTERN, Action.EXTERN, Action.DENY):
        chosen = [facts for facts in audit.modules if facts.action is action]
        if chosen:
            yield ""
            yield title(f"{action.past}: {summed(chosen)}", STYLES[action])
            groups: dict[tuple[int, str], list[ModuleFacts]] = {}
            for facts in chosen:
                groups.setdefault(_belongs_to(facts), []).append(facts)
            for (_, label), members in sorted(groups.items()):
                yield from _group(label, members, at_once)


def _not_at_once(
    members: Sequence[ModuleFacts], at_once: frozenset[str] | None
) -> list[ModuleFacts]:
    """Return the extern modules of a group that loading does not need."""
    if members[0].action is not Action.EXTERN:
        return []
    if members[0].distribution is not None:
        return list(members) if is_optional((m.module for m in members), at_once) else []
    return [each for each in members if is_optional([each.module], at_once)]


def _belongs_to(facts: ModuleFacts) -> tuple[int, str]:
    """Return sort key and label of a module's origin; the standard library comes last."""
    if facts.provided_by is Owner.STDLIB:
        return 2, "the standard library"
    if facts.distribution is not None:
        return 1, facts.requirement or facts.distribution
    if facts.module == RUNTIME_MODULE:
        return 1, "modpack"
    return 0, "without a known distribution"


def _group(
    label: str, members: Sequence[ModuleFacts], at_once: frozenset[str] | None
) -> Iterator[RenderableType]:
    """Yield a distribution with its license and its modules, each with its rule."""
    first, license = members[0], ""
    if first.distribution is not None or first.license is not None:
        license = printable(first.license or "license unknown")
        license += ", an editable install" if first.editable else ""
    parts = filter(None, (license, summed(members)))
    head = Text.assemble((printable(label), "bold"), "  ", "  ".join(parts))
    if first.provided_by in (Owner.STDLIB, Owner.RUNTIME):
        roots = distinct((root_of(facts.module) for facts in members), _SHOWN_ROOTS)
        head.append(f"  ({roots})", "dim")
        yield indented(head, 2)
        return
    rules = list(dict.fromkeys(facts.why for facts in members))
    if len(rules) == 1:
        head.append(f"  {printable(rules[0])}", "dim")
    later = _not_at_once(members, at_once)
    if len(later) == len(members):
        head.append(f"  {_LATER}", "dim")
        later = []
    yield indented(head, 2)
    rows = table(("", "left"), ("", "right"), ("dim", "left"))
    for facts in members:
        why = [printable(facts.why)] if len(rules) > 1 else []
        why += [_LATER] if facts in later else []
        rows.add_row(printable(facts.module), size_of(facts), "; ".join(why))
    yield indented(rows, 4)


def _totals(audit: AuditFacts) -> RenderableType:
    actions = Counter(facts.action for facts in audit.modules)
    severities = Counter(each.severity for each in audit.findings)
    counts = [f"{actions[each]} {each.past}" for each in Action if actions[each]]
    found = [counted(severities[each], each.value) for each in Severity if severities[each]]
    parts = [
        f"{counted(len(audit.modules), 'module')} ({', '.join(counts) or 'none'})",
        counted(len(audit.distributions), "distribution"),
        ", ".join(found) or "no findings",
    ]
    if audit.package is not None:
        storages = audit.package.storages
        size = human_size(storages.size_bytes)
        parts.insert(2, f"{size} in {counted(storages.count, 'tensor storage')}")
    return Text("; ".join(parts))


def _verdict(verdict: AuditResult, audit: AuditFacts) -> Iterator[RenderableType]:
    for gate, findings in verdict.fired:
        subjects = distinct((each.subject for each in findings), _SHOWN_SUBJECTS)
        text = f"--fail-on {printable(gate.text)}: {counted(len(findings), 'finding')}"
        yield Text.assemble((text, "bold red"), f" ({subjects})")
        if gate.license is not None:
            yield from (indented(Text(printable(each.message)), 2) for each in findings)
    if verdict.passed:
        warnings = sum(each.severity is Severity.WARNING for each in audit.findings)
        more = f", with {counted(warnings, 'warning')}" if warnings else ""
        yield Text(f"passed{more}", "bold green")
        return
    reasons = [
        counted(verdict.problems, "problem") if verdict.problems else None,
        counted(len(verdict.errors), "error") if verdict.errors else None,
        f"{counted(len(verdict.fired), 'gate')} fired" if verdict.fired else None,
    ]
    yield Text(f"failed: {', '.join(filter(None, reasons))}", "bold red")
