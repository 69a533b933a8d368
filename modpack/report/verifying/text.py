"""Verifications for people: what was checked, what was found, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from modpack.report.auditing.facts import Finding, Severity
from modpack.report.auditing.findingtext import by_severity, left_out, remedy_line
from modpack.report.codetext import code_lines
from modpack.report.pieces import indented, table
from modpack.report.verifying.facts import CheckFacts, VerifyFacts
from modpack.report.wording import counted, human_size, printable

__all__ = ["verify_report"]

_MOST_OF_A_CODE: Final = 20


def verify_report(facts: VerifyFacts) -> RenderableType:
    """Everything about a verification, the outcome last."""
    return Group(
        _head(facts),
        "",
        _checks(facts.checks),
        *_code(facts),
        *by_severity(facts.findings, _of_one_code),
        *_signatures(facts),
        "",
        _outcome(facts),
    )


def _head(facts: VerifyFacts) -> RenderableType:
    size = human_size(facts.size_bytes) if facts.size_bytes else ""
    parts = [facts.format, size, facts.digest]
    told = ", ".join(printable(part) for part in parts if part)
    return Text.assemble((printable(facts.subject), "bold"), "  ", (told, "dim"))


def _checks(checks: Sequence[CheckFacts]) -> RenderableType:
    rows = table(("", "left"), ("", "right"), ("dim", "left"), ("", "left"))
    for each in checks:
        outcome = "passed" if each.is_passed else "FAILED"
        rows.add_row(each.name, f"{each.count:,}", each.unit, outcome)
    return indented(rows, 2)


def _code(facts: VerifyFacts) -> Iterator[RenderableType]:
    if facts.code is not None:
        yield ""
        yield from code_lines(facts.code)


def _of_one_code(findings: Sequence[Finding]) -> Iterator[RenderableType]:
    """Findings with what to do: once for all, or after each if it is not the same for all."""
    is_same = len({each.remedy for each in findings}) == 1
    for each in findings[:_MOST_OF_A_CODE]:
        yield indented(Text(printable(f"{each.place or each.subject}: {each.text}")), 4)
        if not is_same:
            yield from remedy_line(each.remedy)
    if len(findings) > _MOST_OF_A_CODE:
        yield left_out(len(findings) - _MOST_OF_A_CODE)
    if is_same:
        yield from remedy_line(findings[0].remedy)


def _signatures(facts: VerifyFacts) -> Iterator[RenderableType]:
    if facts.signatures:
        yield ""
    for each in facts.signatures:
        signer = f" of {printable(each.signer)}" if each.signer else ""
        text = f"signed with the key {printable(each.key_id)}{signer} ({printable(each.place)})"
        yield Text(text, "green")


def _outcome(facts: VerifyFacts) -> RenderableType:
    numbers = {
        severity: sum(each.severity is severity for each in facts.findings) for severity in Severity
    }
    if not facts.is_accepted:
        return Text(f"refused: {counted(numbers[Severity.ERROR], 'error')}", "bold red")
    warnings = numbers[Severity.WARNING]
    told = f", with {counted(warnings, 'warning')}" if warnings else ""
    return Text(f"accepted{told}", "bold green")
