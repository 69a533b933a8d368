"""Two texts, line by line: a unified diff, in time that grows with the texts and no faster.

``difflib`` finds the common lines. All searches of one comparison share a :class:`WorkBudget`; a
part that exceeds it counts as replaced. The diff is always correct, but may be longer than the
shortest one.
"""

from __future__ import annotations

import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import Match, SequenceMatcher
from io import BytesIO
from itertools import accumulate
from typing import Final

from modpack.report.diff_facts import TextDifference

_CONTEXT: Final = 3
_MAX_STEPS: Final = 10_000_000
_MAX_LINES: Final = 2_000_000
_MAX_LINES_OF_TWO: Final = 600_000
_NO_NEWLINE: Final = "\\ No newline at end of file"


@dataclass
class WorkBudget:
    """What comparing texts may still take: one for all texts of two packages.

    Attributes:
        steps: of the searches for what two texts have in common.
        lines: of texts that are compared line by line.
    """

    steps: int = _MAX_STEPS
    lines: int = _MAX_LINES

    def has_room_for(self, before: str, after: str) -> bool:
        """Whether to compare two texts line by line; takes their lines from what is left."""
        lines = before.count("\n") + after.count("\n")
        if lines > min(_MAX_LINES_OF_TWO, self.lines):
            return False
        self.lines -= lines
        return True


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
    effort: WorkBudget | None = None,
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
    if before == after:
        return TextDifference((), 0, 0)
    old, new = _lines(before), _lines(after)
    matcher = _BoundedMatcher(old, new, effort or WorkBudget())
    unified = [
        f"--- a/{old_name}" if old_name is not None else "--- /dev/null",
        f"+++ b/{new_name}" if new_name is not None else "+++ /dev/null",
    ]
    added = removed = 0
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        (_, a, _, c, _), (_, _, b, _, d) = group[0], group[-1]
        unified.append(f"@@ -{_range(a, b)} +{_range(c, d)} @@")
        for kind, i, i_end, j, j_end in group:
            if kind == "equal":
                unified += _marked(" ", old[i:i_end])
                continue
            unified += _marked("-", old[i:i_end])
            unified += _marked("+", new[j:j_end])
            added, removed = added + j_end - j, removed + i_end - i
    return TextDifference(tuple(unified), added, removed)


class _BoundedMatcher(SequenceMatcher[str]):
    """difflib's matcher with a limit: texts can be made on which that takes cubic time."""

    def __init__(self, old: Sequence[str], new: Sequence[str], effort: WorkBudget) -> None:
        often = Counter(new)
        # A search goes through all places of each line; very frequent ones are better left out.
        leaves_out = sum(1 + often[line] for line in old) > effort.steps
        super().__init__(None, old, new, autojunk=leaves_out)
        self._old, self._new, self._effort = old, new, effort
        places: Mapping[str, Sequence[int]] = self.b2j  # type: ignore[attr-defined]  # documented
        self._pairs = [0, *accumulate(1 + len(places.get(line, ())) for line in old)]

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> Match:
        """What both parts begin or end with, or else the longest that they have in common."""
        ahi = len(self._old) if ahi is None else ahi
        bhi = len(self._new) if bhi is None else bhi
        size, room = 0, min(ahi - alo, bhi - blo)
        while size < room and self._old[alo + size] == self._new[blo + size]:
            size += 1
        if size:
            return Match(alo, blo, size)
        while size < room and self._old[ahi - size - 1] == self._new[bhi - size - 1]:
            size += 1
        steps = self._pairs[ahi] - self._pairs[alo]
        if size or not room or steps > self._effort.steps:
            return Match(ahi - size, bhi - size, size)
        self._effort.steps -= steps
        return super().find_longest_match(alo, ahi, blo, bhi)


def _lines(text: str) -> list[str]:
    """The lines with their ends; only a line feed ends one."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


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
