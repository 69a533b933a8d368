"""A few of the figures, in seconds, for who reads nothing but the README."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from figures import Measured, Side, all_rounds
from page import made, shown_quantity

__all__ = ["HIGHLIGHTS", "Highlight", "highlights_table"]


@dataclass(frozen=True)
class Highlight:
    """A line of the table.

    Attributes:
        row: the row that was measured.
        what: in words.
        metric: the quantity of it.
        subjects: the subjects for modpack, torch.package, and torch.save and torch.load; empty if
            there is nothing to compare with.
    """

    row: str
    what: str
    metric: str
    subjects: tuple[str, str, str]


_LOADED = ("modpack", "torch.package", "torch.load(mmap=True)")
_SAVED = ("modpack", "torch.package", "torch.save")
_LATER = ("modpack, from the second", "torch.package", "")
_WARM = ("modpack, warm scan cache", "torch.package", "")
HIGHLIGHTS = (
    Highlight("load-one", "load a model of one 2 GiB tensor", "to the model", _LOADED),
    Highlight("load-one", "load it, and read all of it", "with a pass", _LOADED),
    Highlight("load-20000", "load 20,000 tensors of 50 KB, and read them", "with a pass", _LOADED),
    Highlight("save-400", "save 400 tensors, 2 GiB", "saving", _SAVED),
    Highlight("save-20000", "save 20,000 tensors of 50 KB", "saving", _SAVED),
    Highlight("save-objects", "save 200,000 small objects", "saving", _SAVED),
    Highlight("walk-sympy", "export of sympy, for each module", "per module", (*_SAVED[:2], "")),
    Highlight("walk-sympy", "the same, scanned before", "per module", _WARM),
    Highlight("import-3000", "import 3,000 packaged modules again", "importing", _LATER),
    Highlight("round-trip", "save and load 1 MB, not for the first time", "later", _SAVED),
)


def highlights_table(rows: Sequence[Measured], rounds: int) -> str:
    """The table, and how it was made.

    Args:
        rows: what was measured.
        rounds: how often in each run.
    """
    found = {row.name: row for row in rows}
    lines = [
        "| | modpack | torch.package | torch.save, torch.load(mmap=True) |",
        "|---|---:|---:|---:|",
    ]
    lines += [_line(each, found[each.row]) for each in HIGHLIGHTS if each.row in found]
    return "\n".join([made(rows, rounds), "", *lines])


def _line(highlight: Highlight, row: Measured) -> str:
    samples = all_rounds(row.runs)
    cells = [_cell(samples.get(Side(each, highlight.metric))) for each in highlight.subjects]
    return f"| {highlight.what} | {' | '.join(cells)} |"


def _cell(values: Sequence[float] | None) -> str:
    return shown_quantity(statistics.median(values), "s") if values else ""
