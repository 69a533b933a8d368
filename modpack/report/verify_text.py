"""Verifications as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from modpack.core.text import counted, human_size, printable
from modpack.diagnostics import Severity
from modpack.report.audit_text import by_severity, code_part, outcome
from modpack.report.format import indented, table
from modpack.report.verify import FIRST, CheckFacts, VerifyFacts

_MOST: Final = dict.fromkeys(Severity, 20)
"""Limit of the findings of one code, by severity."""


def verify_report(facts: VerifyFacts) -> RenderableType:
    """Return the report of a verification, the verdict last."""
    # They explain the failed checks below, so they come before the table.
    first = [each for each in facts.findings if each.code in FIRST]
    others = [each for each in facts.findings if each.code not in FIRST]
    errors = [each for each in facts.findings if each.severity is Severity.ERROR]
    return Group(
        _head(facts),
        *by_severity(first, _MOST),
        "",
        _checks(facts.checks),
        *code_part(facts.code),
        *by_severity(others, _MOST),
        *_signatures(facts),
        "",
        outcome(facts.findings, [counted(len(errors), "error")] if errors else []),
    )


def _head(facts: VerifyFacts) -> RenderableType:
    size = human_size(facts.size_bytes) if facts.size_bytes else ""
    parts = [facts.format, size, facts.digest]
    details = ", ".join(printable(part) for part in parts if part)
    return Text.assemble((printable(facts.path), "bold"), "  ", (details, "dim"))


def _checks(checks: Sequence[CheckFacts]) -> RenderableType:
    rows = table(("", "left"), ("", "right"), ("dim", "left"), ("", "left"))
    for each in checks:
        outcome = "passed" if each.is_passed else "FAILED"
        rows.add_row(each.name, f"{each.count:,}", each.unit, outcome)
    return indented(rows, 2)


def _signatures(facts: VerifyFacts) -> Iterator[RenderableType]:
    if facts.signatures:
        yield ""
    for each in facts.signatures:
        signer = f" of {printable(each.signer)}" if each.signer else ""
        text = f"signed with the key {printable(each.key_id)}{signer} ({printable(each.location)})"
        yield Text(text, "green")
