"""How the tensors of two packages differ: by name where the packages record names.

Elements are the same if their bytes are: nothing is interpreted, and only what is needed is read,
in pieces. A package may name thousands of tensors that lie over each other in one storage: what is
read for all of them is bounded, and beyond that it is not known whether they differ.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

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
from modpack.report.diff_modules import ComparedPackage, are_same, changed_fields, in_one_only

_FREE_BYTES: Final = 1 << 28
_READS_OF_ALL: Final = 4
"""So many times all that the packages hold may be read, and ``_FREE_BYTES`` more."""


class _ElementComparer:
    """Compares tensors of two packages."""

    def __init__(self, before: ComparedPackage, after: ComparedPackage, opened: ExitStack) -> None:
        self._before = before
        self._after = after
        held_bytes = before.archive.stored_bytes() + after.archive.stored_bytes()
        self._left_bytes = _FREE_BYTES + held_bytes * _READS_OF_ALL
        self._is_same_order = _byteorder(before) == _byteorder(after)
        self._known: dict[tuple[object, ...], Values] = {}
        self._opened = opened
        self._files: dict[str, BinaryIO] = {}
        self._held: dict[int, tuple[str, memoryview]] = {}

    def compare(self, old: TensorFacts, new: TensorFacts) -> Values:
        """How the elements of a tensor of the first package compare with one of the second.

        It is unknown where comparing all tensors so far has taken more than it may, and where the
        elements are laid out in different orders, or with gaps that are not the same.
        """
        if old.storage is None or new.storage is None:
            return Values.UNKNOWN
        if (old.dtype, old.shape, old.form) != (new.dtype, new.shape, new.form):
            return Values.UNKNOWN
        key = (old.storage, old.offset, old.stride, new.storage, new.offset, new.stride, old.shape)
        if key not in self._known:
            try:
                self._known[key] = self._compared(old, new)
            except _TooMuchError:
                self._known[key] = Values.UNKNOWN
        return self._known[key]

    def _compared(self, old: TensorFacts, new: TensorFacts) -> Values:
        item = ITEM_BYTES.get(old.dtype)
        if old.numel == 0:
            return Values.SAME
        if not self._is_same_order and item != 1:
            return Values.UNKNOWN
        records = _record(old), _record(new)
        is_same_place = (old.offset, old.stride) == (new.offset, new.stride)
        if is_same_place and are_same(self._before, records[0], self._after, records[1]):
            return Values.SAME
        extent = _extent(old)
        if item is None or extent != _extent(new):
            return Values.UNKNOWN
        length = old.span * item
        is_dense = _is_dense(extent)
        sizes = self._before.archive.size(records[0]), self._after.archive.size(records[1])
        if is_dense and old.offset == new.offset == 0 and sizes == (length, length):
            return Values.DIFFERENT  # as the digests of the storages are
        for at in range(0, length, CHUNK_BYTES):
            part = min(CHUNK_BYTES, length - at)
            was = self._read(self._before, records[0], old.offset * item + at, part)
            if was != self._read(self._after, records[1], new.offset * item + at, part):
                return Values.DIFFERENT if is_dense else Values.UNKNOWN
        return Values.SAME

    def _read(self, side: ComparedPackage, record: str, start: int, length: int) -> bytes:
        """A part of a record."""
        self._spend(length)
        place = side.archive.data_range(record)
        if place is None:  # compressed, or in a buffer
            held = self._held.get(id(side))
            if held is None or held[0] != record:
                self._spend(side.archive.size(record))
                held = self._held[id(side)] = record, side.archive.read_view(record)
            return bytes(held[1][start : start + length])
        file = self._files.get(place.path)
        if file is None:
            opened = Path(place.path).open("rb")  # noqa: SIM115  # closed with the others
            file = self._opened.enter_context(opened)
            self._files[place.path] = file
            side.archive.check_unchanged()
        file.seek(place.offset + start)
        return file.read(length)

    def _spend(self, count: int) -> None:
        self._left_bytes -= count
        if self._left_bytes < 0:
            raise _TooMuchError


class _TooMuchError(Exception):
    """Comparing has taken more than it may."""


def _extent(tensor: TensorFacts) -> list[tuple[int, int]]:
    """Sizes and strides, without the dimensions along which nothing changes."""
    pairs = zip(tensor.shape or (), tensor.stride, strict=True)
    return [(size, step) for size, step in pairs if size != 1 and step]


def _is_dense(extent: Sequence[tuple[int, int]]) -> bool:
    """Whether the elements fill a range, each once, in whatever order."""
    expected = 1
    for size, step in sorted(extent, key=lambda pair: pair[1]):
        if step != expected:
            return False
        expected *= size
    return True


def _record(tensor: TensorFacts) -> str:
    return layout.storage_name(tensor.storage or "")


def _byteorder(side: ComparedPackage) -> str:
    """The order of bytes in storages; nobody states any but little-endian where it is missing."""
    return side.read_text(layout.BYTEORDER) or layout.LITTLE_ENDIAN.decode()


_Key = tuple[str, str, int]
"""A resource, a name in it, and which tensor of that name it is."""
_Named = Mapping[str, tuple[TensorFacts, ...]]


def compare_tensors(
    before: ComparedPackage, after: ComparedPackage
) -> tuple[tuple[TensorDifference, ...], tuple[SharingDifference, ...], StoragesDifference]:
    """The tensors that differ, which of them share storages, and the storages that differ.

    Named tensors are compared by name, wherever their elements are stored. Storages that none of
    them is in are compared by content, and so are all if a package does not record names.
    """
    if _hold_the_same(before, after):
        return (), (), StoragesDifference()
    old, new = before.tensors(), after.tensors()
    if old is None or new is None:
        return (), (), _storages(before, after, {}, {}, all_compared=True)
    with ExitStack() as opened:
        comparer = _ElementComparer(before, after, opened)
        tensors = tuple(_with_origins(before, after, list(_tensors(old, new, comparer))))
    storages = _storages(before, after, old, new, all_compared=False)
    return tensors, tuple(_sharing(old, new)), storages


def _hold_the_same(before: ComparedPackage, after: ComparedPackage) -> bool:
    """Whether the same names lead to the same records, so that nothing has to be looked at."""
    if before.manifest is None or after.manifest is None:
        return False
    records = (layout.TENSORS, *before.storages())
    others = (layout.TENSORS, *after.storages())
    old, new = before.manifest.records, after.manifest.records
    return {r: old.get(r) for r in records} == {r: new.get(r) for r in others}


def _tensors(old: _Named, new: _Named, comparer: _ElementComparer) -> Iterator[TensorDifference]:
    were, are = dict(_keyed(old)), dict(_keyed(new))
    for key in dict.fromkeys([*were, *are]):
        resource, name, _ = key
        was, is_now = were.get(key), are.get(key)
        if was is None or is_now is None:
            yield TensorDifference(resource, name, Change.of(was, is_now), was, is_now)
            continue
        fields = changed_fields(_fields(was), _fields(is_now))
        values = comparer.compare(was, is_now)
        has_storages = was.storage is not None and is_now.storage is not None
        is_unclear = values is Values.UNKNOWN and has_storages
        if fields or values is Values.DIFFERENT or is_unclear:
            yield TensorDifference(resource, name, Change.CHANGED, was, is_now, fields, values)


def _keyed(tensors: _Named) -> Iterator[tuple[_Key, TensorFacts]]:
    for resource, of_one in tensors.items():
        seen: Counter[str] = Counter()
        for tensor in of_one:
            yield (resource, tensor.name, seen[tensor.name]), tensor
            seen[tensor.name] += 1


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
    before: ComparedPackage, after: ComparedPackage, found: Sequence[TensorDifference]
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


def _content(side: ComparedPackage, tensor: TensorFacts | None) -> object | None:
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
    before: ComparedPackage, after: ComparedPackage, old: _Named, new: _Named, all_compared: bool
) -> StoragesDifference:
    by_crc = before.manifest is None or after.manifest is None
    was, is_now = _unnamed(before, old, by_crc), _unnamed(after, new, by_crc)
    different = tuple(
        StorageDifference(record, change, size)
        for change, (record, size) in in_one_only(was, is_now)
    )
    return StoragesDifference(all_compared, len(was.keys() & is_now.keys()), different)


def _unnamed(
    side: ComparedPackage, tensors: _Named, by_crc: bool
) -> dict[tuple[object, int], tuple[str, int]]:
    """The storages that no named tensor is in: by content, and which of that content each is."""
    named = {
        layout.storage_name(each.storage)
        for of_one in tensors.values()
        for each in of_one
        if each.storage is not None
    }
    found: dict[tuple[object, int], tuple[str, int]] = {}
    seen: Counter[object] = Counter()
    for record in side.storages():
        if record not in named:
            size = side.archive.size(record)
            content = size, side.archive.crc32(record) if by_crc else side.digest(record)
            found[content, seen[content]] = record, size
            seen[content] += 1
    return found
