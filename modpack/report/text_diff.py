"""Two texts, line by line: a unified diff, in time that grows with the texts and no faster.

Lines that each text has once, in the same order, are taken for unchanged. Between them the
shortest edit is searched for (E. W. Myers, "An O(ND) difference algorithm and its variations",
1986), as long as it is short, and all searches of a comparison together take no more than
:class:`Effort` allows; beyond that a part counts as replaced. The diff is right in any case; it may
be longer than the shortest one.
"""

from __future__ import annotations

import tokenize
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Final

from modpack.report.diff_facts import TextDifference

_CONTEXT: Final = 3
_MOST_EDITS: Final = 500
_MOST_STEPS: Final = 4_000_000
_MOST_LINES: Final = 2_000_000
_MOST_LINES_OF_TWO: Final = 600_000
_NO_NEWLINE: Final = "\\ No newline at end of file"


@dataclass
class Effort:
    """What comparing texts may still take: one for all texts of two packages.

    Attributes:
        steps: of the searches for the shortest edits.
        lines: of texts that are compared line by line.
    """

    steps: int = _MOST_STEPS
    lines: int = _MOST_LINES

    def has_room_for(self, before: str, after: str) -> bool:
        """Whether to compare two texts line by line; takes their lines from what is left."""
        lines = before.count("\n") + after.count("\n")
        if lines > min(_MOST_LINES_OF_TWO, self.lines):
            return False
        self.lines -= lines
        return True


@dataclass(frozen=True)
class _Block:
    """Lines ``before[a:b]`` that became ``after[c:d]``."""

    a: int
    b: int
    c: int
    d: int


def as_text(content: bytes, record: str) -> str | None:
    """The text of a record, with its line ends as they are; None if it is no text.

    Args:
        content: the bytes. They are UTF-8, or Python that says what it is (PEP 263).
        record: the name of the record.
    """
    encoding = "utf-8"
    try:
        if record.endswith(".py"):
            encoding, _ = tokenize.detect_encoding(BytesIO(content).readline)
        text = content.decode(encoding.removesuffix("-sig"))
    except (SyntaxError, UnicodeError, LookupError):
        return None
    return None if "\0" in text else text


def text_difference(
    before: str,
    after: str,
    old_name: str | None,
    new_name: str | None,
    effort: Effort | None = None,
) -> TextDifference:
    r"""How two texts differ.

    Args:
        before: the first one.
        after: the second one.
        old_name: what to call the first one; None if it was not there.
        new_name: what to call the second one; None if it is not there.
        effort: what the search may take, which is taken from it; a new one by default.

    >>> print(*text_difference("a\nb\n", "a\nc\n", "x.py", "x.py").unified, sep="\n")
    --- a/x.py
    +++ b/x.py
    @@ -1,2 +1,2 @@
     a
    -b
    +c
    """
    old, new = _lines(before), _lines(after)
    blocks = list(_joined(_blocks(old, new, effort or Effort())))
    head = (
        f"--- a/{old_name}" if old_name is not None else "--- /dev/null",
        f"+++ b/{new_name}" if new_name is not None else "+++ /dev/null",
    )
    hunks = [line for group in _hunks(blocks) for line in _hunk(group, old, new)]
    return TextDifference(
        (*head, *hunks) if hunks else (),
        sum(block.d - block.c for block in blocks),
        sum(block.b - block.a for block in blocks),
    )


def _lines(text: str) -> list[str]:
    """The lines with their ends; only a line feed ends one."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _blocks(old: Sequence[str], new: Sequence[str], effort: Effort) -> Iterator[_Block]:
    numbers: dict[str, int] = {}
    a = [numbers.setdefault(line, len(numbers)) for line in old]
    b = [numbers.setdefault(line, len(numbers)) for line in new]
    x = y = 0
    for i, j in [*_anchors(a, b), (len(a), len(b))]:
        yield from _between(a, b, _Block(x, i, y, j), effort)
        x, y = i, j


def _anchors(a: Sequence[int], b: Sequence[int]) -> list[tuple[int, int]]:
    """The longest series of lines that both have once, in the same order."""
    often_in_a, often_in_b = Counter(a), Counter(b)
    places = {line: j for j, line in enumerate(b) if often_in_b[line] == 1}
    pairs = [(i, places[n]) for i, n in enumerate(a) if often_in_a[n] == 1 and n in places]
    ends: list[int] = []
    tails: list[int] = []
    previous: list[int] = []
    for number, (_, j) in enumerate(pairs):
        length = bisect_left(ends, j)
        ends[length : length + 1] = [j]
        tails[length : length + 1] = [number]
        previous.append(tails[length - 1] if length else -1)
    chosen: list[tuple[int, int]] = []
    number = tails[-1] if tails else -1
    while number >= 0:
        chosen.append(pairs[number])
        number = previous[number]
    return chosen[::-1]


def _between(a: Sequence[int], b: Sequence[int], part: _Block, effort: Effort) -> Iterator[_Block]:
    """The changes in a part, without what is the same at its begin and its end."""
    x, x_end, y, y_end = part.a, part.b, part.c, part.d
    while x < x_end and y < y_end and a[x] == b[y]:
        x, y = x + 1, y + 1
    while x < x_end and y < y_end and a[x_end - 1] == b[y_end - 1]:
        x_end, y_end = x_end - 1, y_end - 1
    if x == x_end or y == y_end:
        if x < x_end or y < y_end:
            yield _Block(x, x_end, y, y_end)
        return
    trace = _trace(a[x:x_end], b[y:y_end], effort)
    if trace is None:
        yield _Block(x, x_end, y, y_end)
        return
    steps = _steps(trace, x_end - x, y_end - y)
    yield from (_Block(x + s.a, x + s.b, y + s.c, y + s.d) for s in steps)


def _trace(a: Sequence[int], b: Sequence[int], effort: Effort) -> list[dict[int, int]] | None:
    """How far each diagonal is reached, after each number of edits; None if there are too many."""
    reached: dict[int, int] = {1: 0}
    trace: list[dict[int, int]] = []
    for edits in range(min(len(a) + len(b), _MOST_EDITS) + 1):
        trace.append(dict(reached))
        for diagonal in range(-edits, edits + 1, 2):
            begin = x = _begin(reached, diagonal, edits)
            y = x - diagonal
            while x < len(a) and y < len(b) and a[x] == b[y]:
                x, y = x + 1, y + 1
            reached[diagonal] = x
            effort.steps -= 1 + x - begin
            if x >= len(a) and y >= len(b):
                return trace
            if effort.steps < 0:
                return None
    return None


def _is_addition(reached: dict[int, int], diagonal: int, edits: int) -> bool:
    """Whether a diagonal is entered by an added line; else by a removed one."""
    if diagonal in (-edits, edits):
        return diagonal == -edits
    return reached[diagonal - 1] < reached[diagonal + 1]


def _begin(reached: dict[int, int], diagonal: int, edits: int) -> int:
    """How far the first text is read where an edit enters a diagonal."""
    if _is_addition(reached, diagonal, edits):
        return reached[diagonal + 1]
    return reached[diagonal - 1] + 1


def _steps(trace: list[dict[int, int]], x: int, y: int) -> list[_Block]:
    """The single edits, the first one first."""
    steps: list[_Block] = []
    for edits in range(len(trace) - 1, 0, -1):
        reached, diagonal = trace[edits], x - y
        end = _begin(reached, diagonal, edits)
        if _is_addition(reached, diagonal, edits):
            steps.append(_Block(end, end, end - diagonal - 1, end - diagonal))
        else:
            steps.append(_Block(end - 1, end, end - diagonal, end - diagonal))
        x, y = steps[-1].a, steps[-1].c
    return steps[::-1]


def _joined(blocks: Iterator[_Block]) -> Iterator[_Block]:
    """Changes that touch are one."""
    last: _Block | None = None
    for block in blocks:
        if last is not None and last.b == block.a and last.d == block.c:
            last = _Block(last.a, block.b, last.c, block.d)
            continue
        if last is not None:
            yield last
        last = block
    if last is not None:
        yield last


def _hunks(blocks: Sequence[_Block]) -> Iterator[list[_Block]]:
    """Changes whose surroundings touch."""
    group: list[_Block] = []
    for block in blocks:
        if group and block.a - group[-1].b > 2 * _CONTEXT:
            yield group
            group = []
        group.append(block)
    if group:
        yield group


def _hunk(group: Sequence[_Block], old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    first, last = group[0], group[-1]
    before = min(_CONTEXT, first.a)
    after = min(_CONTEXT, len(old) - last.b)
    old_part = _range(first.a - before, last.b + after)
    new_part = _range(first.c - before, last.d + after)
    yield f"@@ -{old_part} +{new_part} @@"
    position = first.a - before
    for block in group:
        yield from _marked(" ", old[position : block.a])
        yield from _marked("-", old[block.a : block.b])
        yield from _marked("+", new[block.c : block.d])
        position = block.b
    yield from _marked(" ", old[position : position + after])


def _range(begin: int, end: int) -> str:
    """A range of lines as unified diffs write it: from 1; an empty one by the line before it."""
    length = end - begin
    start = begin + 1 if length else begin
    return f"{start}" if length == 1 else f"{start},{length}"


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield mark + line.removesuffix("\n")
        if not line.endswith("\n"):
            yield _NO_NEWLINE
