"""The stack of a pickle's machine, and the bytes that it reads."""

from __future__ import annotations

import sys
from typing import Final

from modpack.discovery._picklemachine.found import MalformedError
from modpack.discovery._picklemachine.values import OPAQUE

__all__ = ["NO_FRAME", "Stack"]

NO_FRAME: Final = sys.maxsize

_MOST_KEPT: Final = 1_500_000
"""Tuples of interest, and other values that cost memory; what has more is not followed."""
_OPAQUE_TUPLES: Final = tuple((OPAQUE,) * length for length in range(5))


class Stack:
    """Values, with marks between them.

    Attributes:
        data: the record with the pickle in it.
        stack: the values.
        marks: how many values were there when a mark was set.
        frame_end: where the frame ends that the machine is in; far away if it is in none.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.kept = 0
        self.frame_end = NO_FRAME

    def pop(self) -> object:
        """Take the value on top."""
        if self.marks and self.marks[-1] == len(self.stack):
            raise MalformedError("it takes a mark for a value")
        return self.stack.pop()

    def top(self) -> object:
        """The value on top."""
        if self.marks and self.marks[-1] == len(self.stack):
            raise MalformedError("it takes a mark for a value")
        return self.stack[-1]

    def pop_to_mark(self) -> list[object]:
        """Take all values above the last mark, and the mark."""
        mark = self.marks.pop()
        values = self.stack[mark:]
        del self.stack[mark:]
        return values

    def push_tuple(self, values: list[object]) -> None:
        """A tuple; those with nothing of interest in them are all one."""
        for each in values:
            if not (each is OPAQUE or isinstance(each, int)):  # what may be of interest later
                self.keep(len(values))
                self.stack.append(tuple(values))
                return
        self.stack.append(_OPAQUE_TUPLES[min(len(values), 4)])

    def keep(self, count: int = 0) -> None:
        """Count what costs memory."""
        self.kept += 1 + count // 8
        if self.kept > _MOST_KEPT:
            raise MalformedError("it makes more values than can be followed")

    def fixed(self, at: int, size: int) -> bytes:
        """A number of bytes of the pickle."""
        taken = self.data[at : at + size]
        if len(taken) < size:
            raise MalformedError("it is cut off")
        return taken

    def number(self, at: int, size: int) -> int:
        """An unsigned number of some bytes."""
        return int.from_bytes(self.fixed(at, size), "little")

    def line(self, at: int) -> tuple[bytes, int]:
        """The bytes up to the end of a line, and where the next one begins."""
        end = self.data.find(b"\n", at)
        if end < 0:
            raise MalformedError("it is cut off")
        return self.data[at:end], end + 1
