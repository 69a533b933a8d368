"""Whether two tensors have the same elements, told from the records that hold them.

Only what is needed is read, in pieces, and nothing is interpreted: elements are the same if their
bytes are. A package may name thousands of tensors that lie over each other in one storage: what is
read for all of them is bounded, and beyond that it is not known whether they differ.

How the tensors of two packages differ: by name where the packages record names.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import BinaryIO, Final, Literal, TypeAlias

from modpack.archive import layout
from modpack.archive.base import CHUNK_BYTES
from modpack.core.tensors import ITEM_BYTES, TensorFacts
from modpack.report.diff_facts import (
    Change,
    SharingDifference,
    StorageDifference,
    StoragesDifference,
    TensorDifference,
    Values,
)
from modpack.report.diff_modules import Side, are_same, changed_fields

_Format: TypeAlias = Literal["B", "H", "I", "Q"]
_FREE_BYTES: Final = 1 << 28
_READS_OF_ALL: Final = 4
"""So many times all that the packages hold may be read, and ``_FREE_BYTES`` more."""
_FREE_ROWS: Final = 500_000
_BYTES_PER_ROW: Final = 1000
"""One row may be gathered for so many bytes that the packages hold, and ``_FREE_ROWS`` more."""
_FORMATS: Final[Mapping[int, _Format]] = {1: "B", 2: "H", 4: "I", 8: "Q"}


class ElementComparer:
    """Compares tensors of two packages.

    Args:
        before: the first package.
        after: the second.
    """

    def __init__(self, before: Side, after: Side) -> None:
        self._before = before
        self._after = after
        self._effort = _Effort(before.archive.stored_bytes() + after.archive.stored_bytes())
        self._old_storages = _Storages(before, self._effort)
        self._new_storages = _Storages(after, self._effort)
        self._is_same_order = _byteorder(before) == _byteorder(after)
        self._known: dict[tuple[object, ...], Values] = {}

    def __enter__(self) -> ElementComparer:
        return self

    def __exit__(self, *failure: object) -> None:
        self._old_storages.close()
        self._new_storages.close()

    def compare(self, old: TensorFacts, new: TensorFacts) -> Values:
        """How the elements of a tensor of the first package compare with one of the second.

        It is unknown where comparing all tensors so far has taken more than it may.
        """
        if old.storage is None or new.storage is None:
            return Values.UNKNOWN
        if (old.dtype, old.shape, old.form) != (new.dtype, new.shape, new.form):
            return Values.UNKNOWN
        key = (old.storage, old.offset, old.stride, new.storage, new.offset, new.stride, old.shape)
        if key not in self._known:
            self._known[key] = self._compared_with_little(old, new)
        return self._known[key]

    def _compared_with_little(self, old: TensorFacts, new: TensorFacts) -> Values:
        try:
            return self._compared(old, new)
        except _TooMuchError:
            return Values.UNKNOWN

    def _compared(self, old: TensorFacts, new: TensorFacts) -> Values:
        records = _record(old), _record(new)
        is_same_place = (old.offset, old.stride) == (new.offset, new.stride)
        item = ITEM_BYTES.get(old.dtype)
        if old.count == 0:
            return Values.SAME
        if not self._is_same_order and item != 1:
            return Values.UNKNOWN
        if is_same_place and are_same(self._before, records[0], self._after, records[1]):
            return Values.SAME
        if item is None:
            return Values.UNKNOWN
        a, b = _Layout.of(old, item), _Layout.of(new, item)
        if a.steps == b.steps:
            return self._compared_alike(a.without_repeats(), b.without_repeats(), records)
        if max(a.span, b.span) < a.count:
            return Values.UNKNOWN  # elements overlap: so many may be claimed that there is no end
        return _judged(self._gathered(a, b, records))

    def _compared_alike(self, a: _Layout, b: _Layout, records: tuple[str, str]) -> Values:
        """Two tensors whose elements lie in the same order."""
        if self._fill_their_storages(a, b, records):
            return Values.DIFFERENT
        if a.is_dense:
            return _judged(self._same_range(a, b, records))
        if a.count <= a.span:
            return _judged(self._gathered(a, b, records))
        return Values.SAME if self._same_range(a, b, records) else Values.UNKNOWN

    def _fill_their_storages(self, a: _Layout, b: _Layout, records: tuple[str, str]) -> bool:
        """Whether the digests of the storages, which differ, are those of the elements."""
        sizes = self._before.archive.size(records[0]), self._after.archive.size(records[1])
        return a.is_whole(sizes[0]) and b.is_whole(sizes[1])

    def _same_range(self, a: _Layout, b: _Layout, records: tuple[str, str]) -> bool:
        length = a.span * a.item
        for at in range(0, length, CHUNK_BYTES):
            part = min(CHUNK_BYTES, length - at)
            old = self._old_storages.read(records[0], a.offset * a.item + at, part)
            if old != self._new_storages.read(records[1], b.offset * b.item + at, part):
                return False
        return True

    def _gathered(self, a: _Layout, b: _Layout, records: tuple[str, str]) -> bool:
        a, b = a.in_long_rows(), b.in_long_rows()
        self._effort.gather(a.row_count)
        old = self._old_storages.read(records[0], a.offset * a.item, a.span * a.item)
        new = self._new_storages.read(records[1], b.offset * b.item, b.span * b.item)
        return all(x == y for x, y in zip(a.rows(old), b.rows(new), strict=True))


class _TooMuchError(Exception):
    """Comparing has taken more than it may."""


class _Effort:
    """What comparing all tensors may take.

    Args:
        held_bytes: how much the packages hold.
    """

    def __init__(self, held_bytes: int) -> None:
        self._bytes = _FREE_BYTES + held_bytes * _READS_OF_ALL
        self._rows = _FREE_ROWS + held_bytes // _BYTES_PER_ROW

    def read(self, count: int) -> None:
        """So many bytes are going to be read."""
        self._bytes -= count
        if self._bytes < 0:
            raise _TooMuchError

    def gather(self, rows: int) -> None:
        """So many rows are going to be gathered."""
        self._rows -= rows
        if self._rows < 0:
            raise _TooMuchError


class _Layout:
    """Where the elements of a tensor lie in its storage, in units that a machine has.

    Attributes:
        sizes: the shape without dimensions of one.
        steps: the strides of those.
        item: bytes of a unit.
        offset: units before the first one.
    """

    def __init__(self, sizes: Sequence[int], steps: Sequence[int], item: int, offset: int) -> None:
        self.sizes = tuple(sizes)
        self.steps = tuple(steps)
        self.item = item
        self.offset = offset

    @classmethod
    def of(cls, tensor: TensorFacts, item: int) -> _Layout:
        """The layout of a tensor; elements of 16 bytes are two units each."""
        pairs = zip(tensor.shape or (), tensor.stride, strict=True)
        kept = [(size, step) for size, step in pairs if size != 1]
        units = max(1, item // 8)
        if units > 1:
            kept = [(size, step * units) for size, step in kept] + [(units, 1)]
        sizes, steps = [size for size, _ in kept], [step for _, step in kept]
        return cls(sizes, steps, item // units, tensor.offset * units)

    @property
    def count(self) -> int:
        """How many units there are, each as often as it is named."""
        return math.prod(self.sizes)

    @property
    def span(self) -> int:
        """Units from the first one to the last one."""
        return 1 + sum((s - 1) * step for s, step in zip(self.sizes, self.steps, strict=True))

    def is_whole(self, size_bytes: int) -> bool:
        """Whether these are all units of a storage of that size, each once."""
        return self.is_dense and self.offset == 0 and self.span * self.item == size_bytes

    def without_repeats(self) -> _Layout:
        """The same units, each once: without the dimensions along which nothing changes."""
        kept = [(n, step) for n, step in zip(self.sizes, self.steps, strict=True) if step]
        return _Layout([n for n, _ in kept], [step for _, step in kept], self.item, self.offset)

    def in_long_rows(self) -> _Layout:
        """The same units in another order, which depends on the shape alone, in the fewest rows."""
        pairs = sorted(zip(self.sizes, self.steps, strict=True), key=lambda pair: pair[0])
        return _Layout([n for n, _ in pairs], [step for _, step in pairs], self.item, self.offset)

    @property
    def row_count(self) -> int:
        """In how many rows the units are gathered."""
        return math.prod(self.sizes[:-1])

    @property
    def is_dense(self) -> bool:
        """Whether the units fill a range, each once, in whatever order."""
        expected = 1
        for step, size in sorted(zip(self.steps, self.sizes, strict=True)):
            if step != expected:
                return False
            expected *= size
        return True

    def rows(self, content: bytes) -> Iterator[bytes]:
        """The units in the order of the indices, those of the last dimension at once."""
        units = memoryview(content).cast(_FORMATS[self.item])
        if not self.sizes:
            yield units.tobytes()
            return
        *outer, length = self.sizes
        *outer_steps, step = self.steps
        for index in product(*map(range, outer)):
            start = sum(i * s for i, s in zip(index, outer_steps, strict=True))
            if step == 0:
                yield units[start : start + 1].tobytes() * length
            else:
                yield units[start : start + (length - 1) * step + 1 : step].tobytes()


class _Storages:
    """The storages of one package, read in parts."""

    def __init__(self, side: Side, effort: _Effort) -> None:
        self._side = side
        self._effort = effort
        self._open = ExitStack()
        self._files: dict[str, BinaryIO] = {}
        self._held: tuple[str, memoryview] = ("", memoryview(b""))

    def close(self) -> None:
        self._open.close()

    def read(self, record: str, start: int, length: int) -> bytes:
        """A part of a record."""
        self._effort.read(length)
        place = self._side.archive.data_range(record)
        if place is None:  # compressed, or in a buffer
            if self._held[0] != record:
                self._effort.read(self._side.archive.size(record))
                self._held = (record, self._side.archive.read_view(record))
            return bytes(self._held[1][start : start + length])
        if place.path not in self._files:
            opened = Path(place.path).open("rb")  # noqa: SIM115  # closed with the others
            self._files[place.path] = self._open.enter_context(opened)
            self._side.archive.check_unchanged()
        file = self._files[place.path]
        file.seek(place.offset + start)
        return file.read(length)


def _record(tensor: TensorFacts) -> str:
    return layout.storage_name(tensor.storage or "")


def _byteorder(side: Side) -> str:
    """The order of bytes in storages; nobody states any but little-endian where it is missing."""
    return side.read_text(layout.BYTEORDER) or layout.LITTLE_ENDIAN.decode()


def _judged(is_same: bool) -> Values:
    return Values.SAME if is_same else Values.DIFFERENT


_Key = tuple[str, str, int]
"""A resource, a name in it, and which tensor of that name it is."""
_Named = Mapping[str, tuple[TensorFacts, ...]]


@dataclass(frozen=True)
class TensorsDifference:
    """How the tensors and storages of two packages differ; see PackageDifferences."""

    tensors: tuple[TensorDifference, ...] = ()
    sharing: tuple[SharingDifference, ...] = ()
    storages: StoragesDifference = field(default_factory=StoragesDifference)


def compare_tensors(before: Side, after: Side) -> TensorsDifference:
    """The tensors and storages that differ.

    Named tensors are compared by name, wherever their elements are stored. Storages that none of
    them is in are compared by content, and so are all if a package does not record names.
    """
    if _hold_the_same(before, after):
        return TensorsDifference()
    old, new = before.tensors(), after.tensors()
    if old is None or new is None:
        return TensorsDifference(storages=_storages(before, after, {}, {}, are_all=True))
    with ElementComparer(before, after) as comparer:
        tensors = tuple(_with_origins(before, after, list(_tensors(old, new, comparer))))
    return TensorsDifference(
        tensors, tuple(_sharing(old, new)), _storages(before, after, old, new, are_all=False)
    )


def _hold_the_same(before: Side, after: Side) -> bool:
    """Whether the same names lead to the same records, so that nothing has to be looked at."""
    if before.manifest is None or after.manifest is None:
        return False
    records = (layout.TENSORS, *before.storages())
    others = (layout.TENSORS, *after.storages())
    old, new = before.manifest.records, after.manifest.records
    return {r: old.get(r) for r in records} == {r: new.get(r) for r in others}


def _tensors(old: _Named, new: _Named, comparer: ElementComparer) -> Iterator[TensorDifference]:
    was, is_now = dict(_keyed(old)), dict(_keyed(new))
    for key in dict.fromkeys([*was, *is_now]):
        resource, name, _ = key
        if key not in is_now:
            yield TensorDifference(resource, name, Change.REMOVED, was[key])
        elif key not in was:
            yield TensorDifference(resource, name, Change.ADDED, None, is_now[key])
        else:
            found = _changed(resource, was[key], is_now[key], comparer)
            if found is not None:
                yield found


def _keyed(tensors: _Named) -> Iterator[tuple[_Key, TensorFacts]]:
    for resource, of_one in tensors.items():
        seen: Counter[str] = Counter()
        for tensor in of_one:
            yield (resource, tensor.name, seen[tensor.name]), tensor
            seen[tensor.name] += 1


def _changed(
    resource: str, old: TensorFacts, new: TensorFacts, comparer: ElementComparer
) -> TensorDifference | None:
    fields = changed_fields(_fields(old), _fields(new))
    values = comparer.compare(old, new)
    is_unclear = values is Values.UNKNOWN and old.storage is not None and new.storage is not None
    if not fields and values is not Values.DIFFERENT and not is_unclear:
        return None
    return TensorDifference(resource, new.name, Change.CHANGED, old, new, fields, values)


def _fields(tensor: TensorFacts) -> dict[str, str | None]:
    return {
        "shape": None if tensor.shape is None else str(list(tensor.shape)),
        "dtype": tensor.dtype,
        "kind": tensor.kind.value,
        "requires_grad": str(tensor.requires_grad).lower(),
        "persistent": str(tensor.is_persistent).lower(),
        "device": tensor.device,
        "stride": str(_essential_stride(tensor)) if tensor.storage is not None else None,
        "form": tensor.form or None,
    }


def _essential_stride(tensor: TensorFacts) -> list[int] | str:
    """The stride where it says something: not along dimensions of one, not where it follows."""
    expected = 1
    is_usual = True
    for size, step in zip(reversed(tensor.shape or ()), reversed(tensor.stride), strict=True):
        is_usual = is_usual and (size == 1 or step == expected)
        expected *= size
    return "contiguous" if is_usual else list(tensor.stride)


def _with_origins(
    before: Side, after: Side, found: Sequence[TensorDifference]
) -> Iterator[TensorDifference]:
    """Added tensors, with the removed ones that have the same elements: they may be renamed."""
    removed: dict[object, deque[str]] = {}
    for each in found:
        content = _content(before, each.before) if each.change is Change.REMOVED else None
        if content is not None:
            removed.setdefault(content, deque()).append(each.name)
    for each in found:
        content = _content(after, each.after) if each.change is Change.ADDED else None
        candidates = removed.get(content) if content is not None else None
        yield replace(each, same_as=candidates.popleft()) if candidates else each


def _content(side: Side, tensor: TensorFacts | None) -> object | None:
    """What two tensors of the same elements have in common, if it can be told without reading."""
    if tensor is None or tensor.storage is None or side.manifest is None:
        return None
    digest = side.digest(layout.storage_name(tensor.storage))
    return digest, tensor.dtype, tensor.shape, tensor.offset, tensor.stride, tensor.form


def _sharing(old: _Named, new: _Named) -> Iterator[SharingDifference]:
    """Groups of tensors, in both packages, that share a storage in one of them only."""
    for resource in sorted(old.keys() & new.keys()):
        both = {each.name for each in old[resource]} & {each.name for each in new[resource]}
        were, are = _groups(old[resource], both), _groups(new[resource], both)
        for change, groups in ((Change.REMOVED, were - are), (Change.ADDED, are - were)):
            for group in sorted(map(sorted, groups)):
                yield SharingDifference(resource, change, tuple(group))


def _groups(tensors: Sequence[TensorFacts], among: set[str]) -> set[frozenset[str]]:
    groups: dict[str, set[str]] = {}
    for each in tensors:
        if each.storage is not None and each.name in among:
            groups.setdefault(each.storage, set()).add(each.name)
    return {frozenset(group) for group in groups.values() if len(group) > 1}


def _storages(
    before: Side, after: Side, old: _Named, new: _Named, are_all: bool
) -> StoragesDifference:
    was, is_now = list(_unnamed(before, old)), list(_unnamed(after, new))
    by_crc = before.manifest is None or after.manifest is None
    contents = [
        [(_storage_content(side, record, by_crc), record) for record in records]
        for side, records in ((before, was), (after, is_now))
    ]
    common = Counter(c for c, _ in contents[0]) & Counter(c for c, _ in contents[1])
    different = [
        StorageDifference(record, change, side.archive.size(record))
        for side, change, listed in (
            (before, Change.REMOVED, contents[0]),
            (after, Change.ADDED, contents[1]),
        )
        for record in _beyond(listed, common)
    ]
    return StoragesDifference(are_all, sum(common.values()), tuple(different))


def _beyond(listed: Sequence[tuple[object, str]], common: Mapping[object, int]) -> Iterator[str]:
    """The records that are left when those of common contents are taken away."""
    left = Counter(common)
    for content, record in listed:
        if left[content] > 0:
            left[content] -= 1
        else:
            yield record


def _unnamed(side: Side, tensors: _Named) -> Iterator[str]:
    named = {
        layout.storage_name(each.storage)
        for of_one in tensors.values()
        for each in of_one
        if each.storage is not None
    }
    return (record for record in side.storages() if record not in named)


def _storage_content(side: Side, record: str, by_crc: bool) -> object:
    known: object = side.archive.crc32(record) if by_crc else side.digest(record)
    return side.archive.size(record), known
