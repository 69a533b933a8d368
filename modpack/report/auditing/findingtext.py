"""Findings for people, as audits and verifications show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from modpack.report.auditing.facts import Finding, Severity
from modpack.report.pieces import indented, title
from modpack.report.wording import counted, printable

__all__ = ["by_severity", "left_out", "remedy_line"]

_COLOURS: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "blue"}


def by_severity(
    findings: Sequence[Finding],
    of_one_code: Callable[[Sequence[Finding]], Iterator[RenderableType]],
) -> Iterator[RenderableType]:
    """Findings by severity, those of a code together below its name.

    Args:
        findings: in any order of severities.
        of_one_code: shows those that have one code, and so one severity.
    """
    for severity in Severity:
        chosen = [each for each in findings if each.severity is severity]
        if not chosen:
            continue
        yield ""
        yield title(counted(len(chosen), severity.value), _COLOURS[severity])
        for code in dict.fromkeys(each.code for each in chosen):
            yield indented(Text(code, "bold"), 2)
            yield from of_one_code([each for each in chosen if each.code == code])


def left_out(count: int, about: str = "") -> RenderableType:
    """That there are more findings than are shown, and what they are about."""
    told = f", about {about}" if about else ""
    return indented(Text(f"{count} more{told}; --json lists them", "dim"), 4)


def remedy_line(remedy: str) -> Iterator[RenderableType]:
    """What to do about a finding, which may quote the package; nothing if there is nothing."""
    if remedy:
        yield indented(Text(f"-> {printable(remedy)}", "dim"), 4)
