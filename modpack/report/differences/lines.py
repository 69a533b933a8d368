"""What the lines of a report about differences are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from modpack.report.differences.facts import Change, FieldChange, TextDifference
from modpack.report.wording import printable

__all__ = ["Line", "arrows", "counts", "marked", "shortened", "source_lines"]

_MARKS: Final = {
    Change.ADDED: ("+", "green"),
    Change.REMOVED: ("-", "red"),
    Change.CHANGED: ("~", "yellow"),
}
_SOURCE_STYLES: Final = (
    (("--- ", "+++ "), "bold"),
    (("@@",), "cyan"),
    (("+",), "green"),
    (("-",), "red"),
)
_MOST_LINES: Final = 40
_MOST_COLUMNS: Final = 1000


class Line(NamedTuple):
    """One line of text, with nothing in it that could steer a terminal.

    Attributes:
        text: the line, without an end.
        style: how it looks at a terminal, as rich calls it.
    """

    text: str
    style: str = ""


def marked(change: Change, text: str, columns: int = 2) -> Line:
    """A line that says what became of something."""
    mark, style = _MARKS[change]
    return Line(f"{' ' * columns}{mark} {printable(text)}".rstrip(), style)


def arrows(fields: Iterable[FieldChange]) -> str:
    """What changed of one thing, as people read it: ``torch: 2.12.0 -> 2.13.0; ...``."""
    return "; ".join(f"{f.what}: {f.before or 'none'} -> {f.after or 'none'}" for f in fields)


def counts(every: Iterable[Change]) -> str:
    """How often each change occurs: ``1 added, 2 changed``."""
    number = Counter(every)
    return ", ".join(f"{number[change]} {change.value}" for change in Change if number[change])


def shortened(lines: Sequence[Line]) -> Iterator[Line]:
    """The first lines of a list, and how many there are beyond them."""
    room = _MOST_LINES if len(lines) > _MOST_LINES + 1 else len(lines)
    yield from lines[:room]
    if len(lines) > room:
        yield Line(f"    and {len(lines) - room} more; --json lists them", "dim")


def source_lines(text: TextDifference, columns: int = 0) -> Iterator[Line]:
    """A unified diff."""
    for number, line in enumerate(text.unified):
        styles = _SOURCE_STYLES if number < 2 else _SOURCE_STYLES[1:]
        style = next((style for marks, style in styles if line.startswith(marks)), "")
        shown = line if len(line) <= _MOST_COLUMNS else f"{line[:_MOST_COLUMNS]}..."
        yield Line(" " * columns + printable(shown, keep="\t"), style)
