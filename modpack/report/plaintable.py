"""Tables without lines, quick enough for thousands of rows.

Rich's own table measures and folds every cell several times, which takes longer than reading the
package that it shows. This one folds only what does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Text

__all__ = ["Column", "PlainTable"]

_GAP = 2
"""Blanks between columns."""


@dataclass
class Column:
    """How one column looks.

    Attributes:
        style: of its cells; those may add to it.
        is_right: whether its cells are aligned to the right.
        min_width: how wide it is at least, if there is room.
    """

    style: str = ""
    is_right: bool = False
    min_width: int = 0


class PlainTable:
    """Rows of cells, in columns as wide as their widest cell; something that rich can print.

    Where there is too little room, the widest columns are made narrower, and what does not fit
    into them goes on in the next line.

    Args:
        columns: how its columns look.
        indent: how many blanks to leave to the left of it.

    >>> made = PlainTable([Column(), Column(is_right=True)], indent=1)
    >>> made.add_row("torch", "7")
    >>> made.add_row("scipy", "12")
    >>> Console(width=40).print(made)
     torch   7
     scipy  12
    """

    def __init__(self, columns: Sequence[Column], indent: int = 0) -> None:
        self.columns = columns
        self.indent = indent
        self._rows: list[list[Text]] = []

    def add_row(self, *cells: str | Text) -> None:
        """Append a row, with a cell for each column.

        A string is shown as it is: it is no markup.

        Raises:
            ValueError: there are more or fewer cells than columns.
        """
        if len(cells) != len(self.columns):
            raise ValueError(f"a row has {len(self.columns)} cells, not {len(cells)}")
        self._rows.append([Text(cell) if isinstance(cell, str) else cell for cell in cells])

    def indented(self, columns: int) -> PlainTable:
        """The same table, further to the right."""
        made = PlainTable(self.columns, self.indent + columns)
        made._rows = self._rows
        return made

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = _fitted(self._wanted_widths(), options.max_width - self._blanks)
        for row in self._rows:
            folded = [_folded(console, *each) for each in zip(row, widths, strict=True)]
            for line in zip_longest(*folded):
                yield Segment(" " * self.indent)
                yield from self._line(console, line, widths)
                yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        wanted = self._blanks + sum(self._wanted_widths())
        least = self._blanks + len(self.columns)
        return Measurement(least, wanted).with_maximum(options.max_width)

    def _line(
        self, console: Console, pieces: Sequence[Text | None], widths: Sequence[int]
    ) -> Iterator[Segment]:
        """One line of a row; blanks that a later cell needs come before that cell."""
        due = 0
        for column, piece, width in zip(self.columns, pieces, widths, strict=True):
            free = width - (cell_len(piece.plain) if piece is not None else 0)
            before, after = (free, 0) if column.is_right else (0, free)
            if piece is not None and piece.plain:
                yield Segment(" " * (due + before))
                yield from _segments(console, piece, column.style)
                due = after + _GAP
            else:
                due += width + _GAP

    def _wanted_widths(self) -> list[int]:
        widths = [column.min_width for column in self.columns]
        for row in self._rows:
            widths = [max(w, cell_len(cell.plain)) for w, cell in zip(widths, row, strict=True)]
        return widths

    @property
    def _blanks(self) -> int:
        return self.indent + _GAP * (len(self.columns) - 1)


def _fitted(wanted: Sequence[int], room: int) -> list[int]:
    """The widths that columns get: no column is cut as long as another is wider.

    >>> _fitted([10, 50, 60], 100), _fitted([10, 20], 100), _fitted([5, 5], 1)
    ([10, 45, 45], [10, 20], [1, 1])
    """
    given: dict[int, int] = {}
    for number in sorted(range(len(wanted)), key=lambda number: wanted[number]):
        share = (room - sum(given.values())) // (len(wanted) - len(given))
        given[number] = min(wanted[number], max(share, 1))
    return [given[number] for number in range(len(wanted))]


def _folded(console: Console, cell: Text, width: int) -> list[Text]:
    """The lines of a cell."""
    if "\n" not in cell.plain and cell_len(cell.plain) <= width:
        return [cell]
    return list(cell.wrap(console, width, overflow="fold"))


def _segments(console: Console, piece: Text, column_style: str) -> Iterator[Segment]:
    style = console.get_style(column_style) if column_style else None
    if piece.spans:
        yield from Segment.apply_style(piece.render(console), style)
        return
    own = console.get_style(piece.style) if piece.style else None
    yield Segment(piece.plain, style + own if style and own else own or style)
