"""How much of a storage is used: the parts of it that are tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import prod
from typing import Final

__all__ = ["LARGE", "StorageView", "bytes_used", "is_mostly_unused"]

LARGE: Final = 1_000_000
"""Bytes of a storage from which on it matters what of it is used."""


@dataclass(frozen=True)
class StorageView:
    """The elements of a storage that a tensor is made of.

    Attributes:
        offset: elements of the storage before its first one.
        shape: its sizes.
        stride: how many elements of the storage lie between neighbours, by dimension.
        item_bytes: bytes of one element.
    """

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    item_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the elements that it has; of those that it repeats, once.

        >>> StorageView(0, (5, 3), (0, 1), 4).size_bytes
        12
        """
        steps = zip(self.shape, self.stride, strict=True)
        return self.item_bytes * prod(size if step or not size else 1 for size, step in steps)

    @property
    def reach(self) -> tuple[int, int]:
        """The bytes of the storage from its first element to its last one.

        >>> StorageView(10, (2, 2), (100, 1), 4).reach
        (40, 448)
        """
        start = self.offset * self.item_bytes
        if 0 in self.shape:
            return start, start
        steps = zip(self.shape, self.stride, strict=True)
        return start, start + self.item_bytes * (1 + sum((n - 1) * step for n, step in steps))


def bytes_used(views: Collection[StorageView]) -> int:
    """How many bytes of a storage some views use together; never too few.

    Two columns of a matrix reach over nearly all of it, and use two columns; two views of the
    same rows have these rows twice, and use them once.

    >>> columns = [StorageView(at, (1000,), (100,), 1) for at in (0, 1)]
    >>> rows = [StorageView(0, (10, 100), (100, 1), 1)] * 2
    >>> bytes_used(columns), bytes_used(rows)
    (2000, 1000)
    """
    distinct = set(views)
    return min(sum(view.size_bytes for view in distinct), _length(v.reach for v in distinct))


def is_mostly_unused(size: int, used: int) -> bool:
    """Whether a storage costs far more than what is used of it.

    Args:
        size: its bytes.
        used: those that are used.

    >>> is_mostly_unused(4_000_000, 12), is_mostly_unused(4_000_000, 2_000_000)
    (True, False)
    >>> is_mostly_unused(4_000, 12)
    False
    """
    return size - used >= LARGE and 2 * used < size


def _length(stretches: Iterable[tuple[int, int]]) -> int:
    """How much some stretches cover together."""
    covered = until = 0
    for start, end in sorted(stretches):
        covered += max(0, end - max(start, until))
        until = max(until, end)
    return covered
