"""Unified diffs of two texts, in time that grows linearly with the texts.

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
    """Budget for comparing all texts of two packages.

    Attributes:
        steps: Remaining steps of searches for common lines.
        lines: Remaining lines of texts that are compared line by line.
    """

    steps: int = _MAX_STEPS
    lines: int = _MAX_LINES

    def has_room_for(self, before: str, after: str) -> bool:
        """Return whether to compare two texts line by line, and subtract their lines."""
        lines = before.count("\n") + after.count("\n")
        if lines > min(_MAX_LINES_OF_TWO, self.lines):
            return False
        self.lines -= lines
        return True


def as_text(content: bytes, record: str) -> str | None:
    """Return the text of a record, with its line ends, or None if it is not text.

    Args:
        content: The bytes, in UTF-8, or Python source that declares its encoding (PEP 263).
        record: Name of the record.
    """
    encoding = "utf-8"
    try:
        if record.endswith(".py"):
            encoding, _ = tokenize.detect_encoding(BytesIO(content).readline)
        # With the mark, the encoding would drop it, and two sources could look the same.
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
    r"""Compare two texts.

    Args:
        before: The first text.
        after: The second text.
        old_name: Name of the first text. None if it does not exist.
        new_name: Name of the second text. None if it does not exist.
        effort: Budget, from which the steps of the search are subtracted. A new one by default.

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
    """The matcher of difflib, with a limit. Some texts make it take cubic time."""

    def __init__(self, old: Sequence[str], new: Sequence[str], effort: WorkBudget) -> None:
        often = Counter(new)
        # A search visits all positions of each line, so very frequent lines are excluded.
        has_frequent_lines = sum(1 + often[line] for line in old) > effort.steps
        super().__init__(None, old, new, autojunk=has_frequent_lines)
        self._old, self._new, self._effort = old, new, effort
        positions: Mapping[str, Sequence[int]] = self.b2j  # type: ignore[attr-defined]  # documented
        self._pairs = [0, *accumulate(1 + len(positions.get(line, ())) for line in old)]

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> Match:
        """Return the common start or end of both parts, or else their longest common block."""
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
        # A common start or end costs nothing. The search of difflib compares all pairs of lines.
        if size or not room or steps > self._effort.steps:
            return Match(ahi - size, bhi - size, size)
        self._effort.steps -= steps
        return super().find_longest_match(alo, ahi, blo, bhi)


def _lines(text: str) -> list[str]:
    """Return the lines with their ends. Only a line feed ends a line."""
    # Not splitlines: it also splits at form feeds, which Python's tokenizer does not.
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _range(begin: int, end: int) -> str:
    """Return a range of lines in the form of unified diffs."""
    length = end - begin
    start = begin + 1 if length else begin
    return f"{start}" if length == 1 else f"{start},{length}"


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield mark + line.removesuffix("\n")
        if not line.endswith("\n"):
            yield _NO_NEWLINE
