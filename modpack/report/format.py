"""Pieces that reports for people are made of: titles, indented parts, tables without lines.

Rich's own table measures and folds every cell several times, which takes longer than reading the
package that it shows. The one here folds only what does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

_GAP = 2
"""Blanks between columns."""
_Cell: TypeAlias = str | Text


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
        self._rows: list[tuple[_Cell, ...]] = []

    def add_row(self, *cells: _Cell) -> None:
        """Append a row, with a cell for each column.

        A string is shown as it is: it is no markup.

        Raises:
            ValueError: there are more or fewer cells than columns.
        """
        if len(cells) != len(self.columns):
            raise ValueError(f"a row has {len(self.columns)} cells, not {len(cells)}")
        self._rows.append(cells)

    def indented(self, columns: int) -> PlainTable:
        """The same table, further to the right."""
        made = PlainTable(self.columns, self.indent + columns)
        made._rows = self._rows
        return made

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        blanks = self.indent + _GAP * (len(self.columns) - 1)
        widths = _fitted(self._wanted_widths(), options.max_width - blanks)
        styles = [console.get_style(column.style or "none") for column in self.columns]
        for line in self._lines(console, widths):
            due = self.indent
            for column, cell, width, style in zip(self.columns, line, widths, styles, strict=True):
                free = width - _width(cell)
                before = free if column.is_right else 0
                if not cell:
                    due += width + _GAP
                    continue
                yield Segment(" " * (due + before))
                if isinstance(cell, str):
                    yield Segment(cell, style)
                else:
                    style += console.get_style(cell.style or "none")
                    yield from Segment.apply_style(cell.render(console), style)
                due = free - before + _GAP
            yield Segment.line()

    def _lines(self, console: Console, widths: Sequence[int]) -> Iterator[Sequence[_Cell]]:
        """The rows, each in as many lines as its cells need."""
        for row in self._rows:
            if all(map(_fits, row, widths)):
                yield row
            else:
                folded = [_folded(console, *each) for each in zip(row, widths, strict=True)]
                yield from zip_longest(*folded, fillvalue="")

    def _wanted_widths(self) -> list[int]:
        cells = list(zip(*self._rows, strict=True)) or [()] * len(self.columns)
        pairs = zip(self.columns, cells, strict=True)
        return [max([column.min_width, *map(_width, of_one)]) for column, of_one in pairs]


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


def _width(cell: _Cell) -> int:
    """How many columns of the terminal a cell takes."""
    text = str(cell)
    return len(text) if text.isascii() and text.isprintable() else cell_len(text)


def _fits(cell: _Cell, width: int) -> bool:
    return _width(cell) <= width and "\n" not in cell


def _folded(console: Console, cell: _Cell, width: int) -> list[Text]:
    """The lines of a cell."""
    whole = Text(cell) if isinstance(cell, str) else cell
    return [whole] if _fits(cell, width) else list(whole.wrap(console, width, overflow="fold"))


def relative(place: str, folder: Path | None) -> str:
    """A place (``file:line``), relative to a folder if it lies below it."""
    if folder is None or not Path(place).is_relative_to(folder):
        return place
    return Path(place).relative_to(folder).as_posix()


def elided(names: Sequence[str], most: int) -> str:
    """The first of some names, and dots for the others."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def title(text: str, color: str) -> Text:
    """The title of a part."""
    return Text(text, f"bold {color}")


def indented(content: RenderableType, columns: int) -> RenderableType:
    """A part, some columns to the right."""
    if isinstance(content, PlainTable):
        return content.indented(columns)
    return Padding(content, (0, 0, 0, columns), expand=False)


def table(*columns: tuple[str, str]) -> PlainTable:
    """A table without lines; each column by its style and alignment (``left``, ``right``)."""
    return PlainTable([Column(style, justify == "right") for style, justify in columns])
