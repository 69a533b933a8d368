"""Building blocks of text reports: titles, indented parts, and tables without lines.

The table of rich measures and wraps every cell several times, which takes longer than reading the
package. The table here wraps only cells that do not fit.
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
"""Spaces between columns."""
_Cell: TypeAlias = str | Text


@dataclass
class Column:
    """The format of a column.

    Attributes:
        style: Style of its cells, which may add to it.
        is_right: Whether its cells are aligned to the right.
        min_width: Minimum width, if there is room.
    """

    style: str = ""
    is_right: bool = False
    min_width: int = 0


class PlainTable:
    """A table that rich can print, with columns as wide as their widest cell.

    If there is too little room, the widest columns become narrower and their cells are wrapped.

    Args:
        columns: Formats of the columns.
        indent: Spaces to the left of the table.

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

        Strings are shown verbatim, without markup.

        Raises:
            ValueError: If the number of cells and columns differ.
        """
        if len(cells) != len(self.columns):
            raise ValueError(f"a row has {len(self.columns)} cells, not {len(cells)}")
        self._rows.append(cells)

    def indented(self, columns: int) -> PlainTable:
        """Return the same table with a larger indent."""
        made = PlainTable(self.columns, self.indent + columns)
        made._rows = self._rows
        return made

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        blanks = self.indent + _GAP * (len(self.columns) - 1)
        # Widths are computed from all rows, so the table is printed in one pass afterwards.
        widths = _fitted(self._wanted_widths(), options.max_width - blanks)
        styles = [console.get_style(column.style or "none") for column in self.columns]
        for line in self._lines(console, widths):
            # Spaces are held back until a cell follows, so that no line ends with spaces.
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
        """Yield the lines of the rows, with wrapped cells."""
        for row in self._rows:
            if all(map(_fits, row, widths)):
                yield row
            else:
                folded = [_folded(console, *each) for each in zip(row, widths, strict=True)]
                yield from zip_longest(*folded, fillvalue="")

    def _wanted_widths(self) -> list[int]:
        cells = list(zip(*self._rows, strict=True)) or [()] * len(self.columns)
        pairs = zip(self.columns, cells, strict=True)
        return [max([column.min_width, *map(_width, listed)]) for column, listed in pairs]


def _fitted(wanted: Sequence[int], room: int) -> list[int]:
    """Return the widths of columns. The widest columns are narrowed first.

    >>> _fitted([10, 50, 60], 100), _fitted([10, 20], 100), _fitted([5, 5], 1)
    ([10, 45, 45], [10, 20], [1, 1])
    """
    given: dict[int, int] = {}
    # From the narrowest column on, what one does not need goes to the wider ones.
    for number in sorted(range(len(wanted)), key=lambda number: wanted[number]):
        share = (room - sum(given.values())) // (len(wanted) - len(given))
        given[number] = min(wanted[number], max(share, 1))
    return [given[number] for number in range(len(wanted))]


def _width(cell: _Cell) -> int:
    """Return the width of a cell in terminal columns."""
    text = str(cell)
    # Most cells are ASCII, and measuring wide characters takes far longer.
    return len(text) if text.isascii() and text.isprintable() else cell_len(text)


def _fits(cell: _Cell, width: int) -> bool:
    return _width(cell) <= width and "\n" not in cell


def _folded(console: Console, cell: _Cell, width: int) -> list[Text]:
    """Return the lines of a wrapped cell."""
    whole = Text(cell) if isinstance(cell, str) else cell
    return [whole] if _fits(cell, width) else list(whole.wrap(console, width, overflow="fold"))


def relative(location: str, folder: Path | None) -> str:
    """Return a location (``path:line``), relative to a folder if it is below the folder."""
    if folder is None or not Path(location).is_relative_to(folder):
        return location
    return Path(location).relative_to(folder).as_posix()


def elided(names: Sequence[str], most: int) -> str:
    """Return the first names, with an ellipsis for the others."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def title(text: str, color: str) -> Text:
    """Return the title of a part."""
    return Text(text, f"bold {color}")


def indented(content: RenderableType, columns: int) -> RenderableType:
    """Return an indented part."""
    if isinstance(content, PlainTable):
        return content.indented(columns)
    return Padding(content, (0, 0, 0, columns), expand=False)


def table(*columns: tuple[str, str]) -> PlainTable:
    """Return a table without lines, from the style and alignment of each column."""
    return PlainTable([Column(style, justify == "right") for style, justify in columns])
