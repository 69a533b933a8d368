"""A search for many words in bytes at once."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

Positions = Mapping[bytes, Sequence[int] | None]
"""Positions by word; None for a frequent word, whose positions are not kept."""

_GROUPS: Final = 8
"""One group for each bit of a byte."""
_PREFIX_LENGTH: Final = 4
"""Bytes at the beginning of each word that are compared in one step."""
_BLOCK: Final = 64 << 10
"""Bytes that are searched at a time. The intermediate results fit into a CPU cache."""
_MAX_POSITIONS: Final = 32
"""Limit for the reported positions of a word."""
_PADDING: Final = bytes(_PREFIX_LENGTH)
_NEXT_MARK: Final = re.compile(rb"\0*[^\0]")
"""Matches up to the next mark, three times as fast as a search for nonzero bytes."""
_LAST_MARK: Final = b"\1"
"""Final mark. Without it, the search after the last mark would restart at every byte."""


class WordFinder:
    """A finder for a fixed set of words.

    In binary data, bytes that are in no word's prefix are removed first: two thirds of a pickle.
    The words are divided into eight groups, one for each bit. For each offset in a prefix, a table
    translates a byte to the groups that contain a word with that byte at that offset. The
    translated data for all offsets, shifted and read as large integers, are combined with ``&``.
    The result marks where a word may begin; only these words are then searched one by one. Fifty
    separate searches would make saving 200,000 small containers or objects take 1.3 times as long
    and miss its goals (benchmark rows save-plain and save-objects).

    Args:
        words: Words to find.

    >>> WordFinder([b"ghp_", b"://"]).find(b"https://example.org")
    {b'://': [5]}
    """

    def __init__(self, words: Iterable[bytes]) -> None:
        words = sorted(set(words))
        self._longest = max(map(len, words))
        self._beginnings = {word: word[:_PREFIX_LENGTH] for word in words}
        self._sizes = sorted(set(map(len, self._beginnings.values())))
        self._groups = list(_split_into_groups(words))
        self._tables = [self._translation_table(offset) for offset in range(_PREFIX_LENGTH)]
        used = {byte for beginning in self._beginnings.values() for byte in beginning}
        self._unused = bytes(byte for byte in range(256) if byte not in used)

    def find(self, data: bytes) -> Positions:
        """Return the positions of the words that occur."""
        found: dict[bytes, list[int] | None] = {}
        for start in range(0, len(data), _BLOCK):
            # A word may cross the end of the block.
            block = data[start : start + _BLOCK + self._longest]
            for word in self._candidates(block):
                _add_positions(found, word, block, start)
        return found

    def _candidates(self, block: bytes) -> list[bytes]:
        """Return the words that may occur in a block. There can be false positives."""
        # Text has few unused bytes, so that removing them would take longer than it saves.
        left = block.translate(None, self._unused) if b"\0" in block else block
        ends = [mark.end() for mark in _NEXT_MARK.finditer(self._mark_beginnings(left))]
        pieces = {left[end - 1 : end - 1 + _PREFIX_LENGTH] for end in ends}
        beginning = {piece[:size] for size in self._sizes for piece in pieces}
        return [word for word, begin in self._beginnings.items() if begin in beginning]

    def _mark_beginnings(self, data: bytes) -> bytes:
        """Return the groups that may have a word at each byte; empty if there are none."""
        padded = data + _PADDING
        numbers = (
            int.from_bytes(padded[offset : offset + len(data)].translate(table), "little")
            for offset, table in enumerate(self._tables)
        )
        # A byte keeps a group's bit if all offsets admit it: a byte-wise AND of shifted copies.
        marks = functools.reduce(operator.and_, numbers)
        return marks.to_bytes(len(data), "little") + _LAST_MARK if marks else b""

    def _translation_table(self, offset: int) -> bytes:
        table = bytearray(256)
        for number, group in enumerate(self._groups):
            for word in group:
                # After the end of a short word, any byte may follow.
                for byte in word[offset : offset + 1] or range(256):
                    table[byte] |= 1 << number
        return bytes(table)


def _add_positions(
    found: dict[bytes, list[int] | None], word: bytes, block: bytes, start: int
) -> None:
    """Add a word's positions in a block, except those that the next block contains too."""
    known = found.get(word, ())
    if known is None:
        return
    found_here = islice(find_all(block, word, overlapping=True), _MAX_POSITIONS + 1)
    positions = [*known, *(start + position for position in found_here if position < _BLOCK)]
    if positions:
        found[word] = positions if len(positions) <= _MAX_POSITIONS else None


def find_all(data: bytes, word: bytes, overlapping: bool = False) -> Iterator[int]:
    """Yield the positions of a word, including overlapping ones if requested."""
    step = 1 if overlapping else len(word)
    position = data.find(word)
    while position >= 0:
        yield position
        position = data.find(word, position + step)


def _split_into_groups(words: list[bytes]) -> Iterator[list[bytes]]:
    """Yield groups of alphabetical neighbors, which share prefixes; short words are separate."""
    short = [word for word in words if len(word) < _PREFIX_LENGTH]
    long = [word for word in words if len(word) >= _PREFIX_LENGTH]
    for_short = -(-_GROUPS * len(short) // max(len(words), 1))
    for part, groups in ((short, for_short), (long, _GROUPS - for_short)):
        for number in range(groups):
            yield part[number * len(part) // groups : (number + 1) * len(part) // groups]
