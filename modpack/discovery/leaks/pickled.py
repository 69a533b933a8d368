"""The texts in a pickle, without its opcodes, which may be letters and digits themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from modpack.discovery.leaks.words import Places, places_in

__all__ = ["pickled_texts"]

_SIZES: Final = {b"X": 4, b"\x8c": 1, b"\x8d": 8, b"B": 4, b"C": 1, b"\x8e": 8}
"""For each opcode of a text or of bytes, how many bytes tell their size (:mod:`pickletools`)."""
_LONGEST: Final = 256 << 10
_AROUND: Final = 8 << 10
_MOST_TRIES: Final = 64


def pickled_texts(data: bytes, anchors: Places) -> Iterator[tuple[int, bytes]]:
    """The texts that have one of the anchors in them, each with its position.

    A text that cannot be told from its surroundings is given with these.

    >>> list(pickled_texts(b"X" + bytes([5, 0, 0, 0]) + b"hf_01" + b"q.", {b"hf_": [5]}))
    [(5, b'hf_01')]
    """
    given: set[tuple[int, int]] = set()
    for anchor, places in anchors.items():
        start, end = 0, 0
        for at in places_in(data, anchor, overlapping=True) if places is None else places:
            if at < end:
                continue
            start, end = _text_at(data, at)
            if (start, end) not in given:
                given.add((start, end))
                yield start, data[start:end]


def _text_at(data: bytes, at: int) -> tuple[int, int]:
    """Where the text begins and ends that a place is in."""
    found = [each for opcode in _SIZES for each in _by_opcode(data, at, opcode)]
    if found:
        return max(found)
    return max(0, at - _AROUND), min(len(data), at + _AROUND)


def _by_opcode(data: bytes, at: int, opcode: bytes) -> Iterator[tuple[int, int]]:
    """The nearest text of an opcode that spans a place: its size says so."""
    width = _SIZES[opcode]
    lowest = max(0, at - (_LONGEST if width > 1 else 256))
    place = data.rfind(opcode, lowest, at)
    for _ in range(_MOST_TRIES):
        if place < 0:
            return
        start = place + 1 + width
        end = start + int.from_bytes(data[place + 1 : start], "little")
        if start <= at < end <= len(data):
            yield start, end
            return
        place = data.rfind(opcode, lowest, place)
