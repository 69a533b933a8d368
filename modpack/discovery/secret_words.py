"""Which of many words occur in bytes, and where, without a search for each of them."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

Places = Mapping[bytes, Sequence[int] | None]
"""Where words begin; None for a word that occurs often, or in any case: then that is not told."""

_GROUPS: Final = 8
"""As many as a byte has bits."""
_COMPARED: Final = 4
"""Bytes at the beginning of each word that are compared at once."""
_BLOCK: Final = 64 << 10
"""Bytes that are looked through at once: what is made of them fits into a processor's cache."""
_FEW: Final = 32
"""Places of a word that are told."""
_PADDING: Final = bytes(_COMPARED)
_MARKED: Final = re.compile(rb"\0*[^\0]")
"""Ends with the next mark: three times as fast as looking for what is not zero."""
_LAST_MARK: Final = b"\1"
"""Stands behind all others: without it the search for one more begins anew in each place."""


class Words:
    """Some words, to be looked for all at once.

    In data that are no text, the bytes are left out first that are in the beginning of no word:
    two thirds of a pickle. The words are put into eight groups, each with a bit of its own. For
    each place in a word there is a table: translated by it, every byte that is left tells which
    groups have a word with that byte there. Read as large numbers, each from its place on, these
    are combined by ``&``: what remains marks where words may begin. Those that may are looked for
    one by one. Fifty searches would make saving 200,000 small containers or objects 1.3 times as
    long, and miss their goals (benchmark rows save-plain and save-objects).

    Args:
        exact: words that are spelled like that.
        any_case: words in small letters, however they are spelled.

    >>> Words([b"ghp_", b"://"], [b"token"]).places(b"https://example.org/MyToken")
    {b'://': [5], b'token': None}
    """

    def __init__(self, exact: Iterable[bytes], any_case: Iterable[bytes] = ()) -> None:
        self._exact = frozenset(exact)
        words = sorted(self._exact.union(any_case))
        self._longest = max(map(len, words))
        self._beginnings = {word: word[:_COMPARED].lower() for word in words}
        self._sizes = sorted(set(map(len, self._beginnings.values())))
        self._groups = list(_grouped(words))
        self._tables = [self._table(place) for place in range(_COMPARED)]
        spellings = (spelled for word in words for spelled in self._spellings(word))
        used = {byte for spelled in spellings for byte in spelled[:_COMPARED]}
        self._unused = bytes(byte for byte in range(256) if byte not in used)

    def places(self, data: bytes) -> Places:
        """Where those of the words begin that occur."""
        found: dict[bytes, list[int] | None] = {}
        for start in range(0, len(data), _BLOCK):
            block = data[start : start + _BLOCK + self._longest]
            candidates = self._candidates(block)
            lowered = b"" if self._exact.issuperset(candidates) else block.lower()
            for word in candidates:
                if word in self._exact:
                    _add_places(found, word, block, start)
                elif word in lowered:
                    found[word] = None
        return found

    def _candidates(self, block: bytes) -> list[bytes]:
        """Words that begin in what is left of a block; some of them not in the block itself."""
        left = block.translate(None, self._unused) if b"\0" in block else block
        ends = [mark.end() for mark in _MARKED.finditer(self._marked(left))]
        pieces = {left[end - 1 : end - 1 + _COMPARED] for end in ends}
        lowered = {piece.lower() for piece in pieces}
        beginning = {piece[:size] for size in self._sizes for piece in lowered}
        return [word for word, begin in self._beginnings.items() if begin in beginning]

    def _marked(self, data: bytes) -> bytes:
        """For each byte the groups that may have a word there; nothing if there is no such byte."""
        padded = data + _PADDING
        numbers = (
            int.from_bytes(padded[place : place + len(data)].translate(table), "little")
            for place, table in enumerate(self._tables)
        )
        marks = functools.reduce(operator.and_, numbers)
        return marks.to_bytes(len(data), "little") + _LAST_MARK if marks else b""

    def _table(self, place: int) -> bytes:
        table = bytearray(256)
        for number, group in enumerate(self._groups):
            for word in group:
                for byte in self._bytes_at(word, place):
                    table[byte] |= 1 << number
        return bytes(table)

    def _bytes_at(self, word: bytes, place: int) -> Iterable[int]:
        if place >= len(word):
            return range(256)
        return {spelled[place] for spelled in self._spellings(word)}

    def _spellings(self, word: bytes) -> tuple[bytes, ...]:
        return (word,) if word in self._exact else (word, word.upper())


def _add_places(
    found: dict[bytes, list[int] | None], word: bytes, block: bytes, start: int
) -> None:
    """Add where a word begins in a block, without those places that the next block has as well."""
    before = found.get(word, ())
    if before is None:
        return
    here = islice(places_in(block, word, overlapping=True), _FEW + 1)
    places = [*before, *(start + at for at in here if at < _BLOCK)]
    if places:
        found[word] = places if len(places) <= _FEW else None


def places_in(data: bytes, word: bytes, overlapping: bool = False) -> Iterator[int]:
    """Where a word begins; those places that are in the one before it only if they are wanted."""
    step = 1 if overlapping else len(word)
    at = data.find(word)
    while at >= 0:
        yield at
        at = data.find(word, at + step)


def _grouped(words: list[bytes]) -> Iterator[list[bytes]]:
    """Neighbours in the alphabet together, which have bytes in common; short words apart."""
    short = [word for word in words if len(word) < _COMPARED]
    long = [word for word in words if len(word) >= _COMPARED]
    for_short = -(-_GROUPS * len(short) // max(len(words), 1))
    for part, groups in ((short, for_short), (long, _GROUPS - for_short)):
        for number in range(groups):
            yield part[number * len(part) // groups : (number + 1) * len(part) // groups]
