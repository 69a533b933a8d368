"""A package's environment beside this one, for people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from modpack.core.environment import EnvironmentComparison, EnvironmentRow, RowStatus
from modpack.report.pieces import indented, table, title
from modpack.report.wording import printable

__all__ = ["comparison_report"]

_MOST_NAMES = 8
"""So many things are named where they are as recorded; of more, the number will do."""
_COLOURS = {
    RowStatus.SAME: "",
    RowStatus.SIMILAR: "yellow",
    RowStatus.UNKNOWN: "yellow",
    RowStatus.DIFFERENT: "red",
    RowStatus.MISSING: "red",
}


def comparison_report(comparison: EnvironmentComparison, strict: bool = False) -> RenderableType:
    """What differs, and how much does not.

    Args:
        comparison: what a package was made with, beside what is here.
        strict: whether what rarely matters counts as well.
    """
    counting = comparison.deviations if strict else comparison.differences
    passed_over = [row for row in comparison.deviations if row not in counting]
    same = [row.name for row in comparison.rows if row not in comparison.deviations]
    parts: list[RenderableType] = []
    if counting:
        parts += [title("Not as recorded", "red"), _rows(counting)]
    if passed_over:
        parts += [title("Rarely matters", "yellow"), _rows(passed_over)]
    named = f" ({', '.join(same)})" if 0 < len(same) <= _MOST_NAMES else ""
    parts.append(Text(printable(f"As recorded: {len(same)} of {len(comparison.rows)}{named}")))
    return Group(*parts)


def _rows(rows: list[EnvironmentRow] | tuple[EnvironmentRow, ...]) -> RenderableType:
    shown = table(("", "left"), ("", "left"), ("", "left"))
    shown.add_row(Text(""), Text("recorded", "dim"), Text("here", "dim"))
    for row in rows:
        shown.add_row(
            Text(printable(row.name)),
            Text(printable(row.recorded or "extern")),
            Text(printable(row.here), _COLOURS[row.status]),
        )
    return indented(shown, 2)
