"""Differences between the tensors of two packages, by name if the packages record names.

Elements are equal if their bytes are equal. Only the necessary parts of storages are read, in
chunks. A package may name thousands of tensors that overlap in one storage, so the total number
of bytes read is limited. Beyond the limit, the result is unknown.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from modpack.archive import layout
from modpack.archive.base import CHUNK_BYTES
from modpack.core.tensors import ITEM_BYTES, TensorFacts
from modpack.errors import listed
from modpack.report.diff_facts import (
    SIZE,
    Change,
    Contents,
    Difference,
    Part,
    changed_fields,
    fields_of,
    in_one_only,
)
from modpack.report.diff_modules import ComparedPackage, are_same

_FREE_BYTES: Final = 1 << 28
_READS_OF_ALL: Final = 4
"""Limit of bytes read: this multiple of the size of both packages, plus ``_FREE_BYTES``."""
_SHOWN: Final = 6


class _ElementComparer:
    """Compares tensors of two packages."""

    def __init__(self, before: ComparedPackage, after: ComparedPackage) -> None:
        self._before = before
        self._after = after
        package_bytes = before.archive.stored_bytes() + after.archive.stored_bytes()
        self._left_bytes = _FREE_BYTES + package_bytes * _READS_OF_ALL
        self._is_same_order = _byteorder(before) == _byteorder(after)
        self._known: dict[tuple[object, ...], Contents] = {}

    def compare(self, old: TensorFacts, new: TensorFacts) -> Contents:
        """Compare the elements of a tensor of the first package with one of the second.

        The result is unknown if the budget is used up, or if the elements have different orders or
        different gaps between them.
        """
        if old.storage is None or new.storage is None:
            return Contents.UNKNOWN
        if (old.dtype, old.shape, old.form) != (new.dtype, new.shape, new.form):
            return Contents.UNKNOWN
        # Tied tensors and views share storages, and each pair of ranges is read once.
        key = (old.storage, old.offset, old.stride, new.storage, new.offset, new.stride, old.shape)
        if key not in self._known:
            self._known[key] = self._compare_elements(old, new)
        return self._known[key]

    def _compare_elements(self, old: TensorFacts, new: TensorFacts) -> Contents:
        item = ITEM_BYTES.get(old.dtype)
        if old.numel == 0:
            return Contents.SAME
        # Equal values have different bytes in the other order.
        if not self._is_same_order and item != 1:
            return Contents.UNKNOWN
        records = _record(old), _record(new)
        is_same_layout = (old.offset, old.stride) == (new.offset, new.stride)
        if is_same_layout and are_same(self._before, records[0], self._after, records[1]):
            return Contents.SAME
        extent = _extent(old)
        if item is None or extent != _extent(new):
            return Contents.UNKNOWN
        length = old.span * item
        is_dense = _is_dense(extent)
        sizes = self._before.archive.size(records[0]), self._after.archive.size(records[1])
        if is_dense and old.offset == new.offset == 0 and sizes == (length, length):
            return Contents.DIFFERENT  # because the digests of the storages differ
        for at in range(0, length, CHUNK_BYTES):
            part = min(CHUNK_BYTES, length - at)
            was = self._read(self._before, records[0], old.offset * item + at, part)
            is_now = self._read(self._after, records[1], new.offset * item + at, part)
            # An exceeded budget gives no result. It must not look like a difference.
            if self._left_bytes < 0:
                return Contents.UNKNOWN
            if was != is_now:
                # Between elements with gaps, the differing bytes may belong to no element.
                return Contents.DIFFERENT if is_dense else Contents.UNKNOWN
        return Contents.SAME

    def _read(self, side: ComparedPackage, record: str, start: int, length: int) -> bytes:
        """Read a part of a record, if the budget is sufficient."""
        extent = side.archive.data_range(record)
        # A compressed record is read from its start.
        self._left_bytes -= length if extent is not None else side.archive.size(record)
        if self._left_bytes < 0:
            return b""
        if extent is None:
            return bytes(side.archive.read_view(record)[start : start + length])
        with Path(extent.path).open("rb") as file:
            side.archive.check_unchanged()
            file.seek(extent.offset + start)
            return file.read(length)


def _extent(tensor: TensorFacts) -> list[tuple[int, int]]:
    """Return sizes and strides, without dimensions of size 1 or stride 0."""
    pairs = zip(tensor.shape or (), tensor.stride, strict=True)
    return [(size, step) for size, step in pairs if size != 1 and step]


def _is_dense(extent: Sequence[tuple[int, int]]) -> bool:
    """Return whether the elements fill a range, each once, in any order."""
    expected = 1
    for size, step in sorted(extent, key=lambda pair: pair[1]):
        if step != expected:
            return False
        expected *= size
    return True


def _record(tensor: TensorFacts) -> str:
    return layout.storage_name(tensor.storage or "")


def _byteorder(side: ComparedPackage) -> str:
    """Return the byte order of storages. Packages without the record are little-endian."""
    return side.read_text(layout.BYTEORDER) or layout.LITTLE_ENDIAN.decode()


_Key = tuple[str, str, int]
"""A resource, a name in it, and the index among the tensors of that name."""
_TensorsByObject = Mapping[str, tuple[TensorFacts, ...]]


def compare_tensors(before: ComparedPackage, after: ComparedPackage) -> Iterator[Difference]:
    """Yield the differences of named tensors, of shared storages, and of the other storages.

    Named tensors are compared by name, regardless of their storage. Storages without a named
    tensor are compared by content. So are all storages if a package does not record names.
    """
    old, new = before.tensors, after.tensors
    if old is None or new is None:
        old = new = {}
    else:
        yield from _tensors(before, after, old, new, _ElementComparer(before, after))
        yield from _sharing(old, new)
    # Digests of torch.package's storages would have to be computed. Its zip has CRC-32s.
    by_crc = before.manifest is None or after.manifest is None
    was, is_now = _unnamed(before, old, by_crc), _unnamed(after, new, by_crc)
    for change, (record, size) in in_one_only(was, is_now):
        yield Difference(Part.STORAGE, record, change, fields=fields_of(change, {SIZE: size}))


def _tensors(
    before: ComparedPackage,
    after: ComparedPackage,
    old: _TensorsByObject,
    new: _TensorsByObject,
    comparer: _ElementComparer,
) -> Iterator[Difference]:
    """Yield the tensors that differ; added ones name a removed one with the same elements."""
    were, are = dict(_keyed(old)), dict(_keyed(new))
    removed: dict[object, deque[str]] = {}
    for key, tensor in were.items():
        content = _content(before, tensor) if key not in are else None
        if content is not None:
            removed.setdefault(content, deque()).append(tensor.name)
    for key in dict.fromkeys([*were, *are]):
        was, is_now = were.get(key), are.get(key)
        fields = changed_fields(_tensor_fields(was), _tensor_fields(is_now))
        contents, same_as, known = None, None, is_now or were[key]
        shape = "?" if known.shape is None else str(list(known.shape))
        about = f"{known.kind.value} {known.dtype} {shape}"
        if was is not None and is_now is not None:
            contents = comparer.compare(was, is_now)
            has_storages = was.storage is not None and is_now.storage is not None
            is_unclear = contents is Contents.UNKNOWN and has_storages
            if not (fields or contents is Contents.DIFFERENT or is_unclear):
                continue
        elif is_now is not None and (candidates := removed.get(_content(after, is_now))):
            # Each removed tensor is the former name of one added tensor only.
            same_as = candidates.popleft()
            about += f", same elements as the removed {same_as}"
        yield Difference(
            Part.TENSOR,
            known.name,
            Change.of(was, is_now),
            about,
            fields,
            contents,
            owner=key[0],
            same_as=same_as,
        )


def _keyed(tensors: _TensorsByObject) -> Iterator[tuple[_Key, TensorFacts]]:
    for resource, named in tensors.items():
        seen: Counter[str] = Counter()
        for tensor in named:
            yield (resource, tensor.name, seen[tensor.name]), tensor
            seen[tensor.name] += 1


def _tensor_fields(tensor: TensorFacts | None) -> dict[str, str | None]:
    if tensor is None:
        return {}
    stride = None
    if tensor.storage is not None:
        stride = "contiguous" if tensor.is_contiguous else str(list(tensor.stride))
    return {
        "shape": None if tensor.shape is None else str(list(tensor.shape)),
        "dtype": tensor.dtype,
        "kind": tensor.kind.value,
        "requires_grad": str(tensor.requires_grad).lower(),
        "persistent": str(tensor.is_persistent).lower(),
        "device": tensor.device,
        "stride": stride,
        "form": tensor.form or None,
    }


def _content(side: ComparedPackage, tensor: TensorFacts) -> object | None:
    """Return a key that tensors with the same elements share, or None if unknown."""
    # Without a manifest, digests would have to be computed from all storages.
    if tensor.storage is None or side.manifest is None:
        return None
    digest = side.digest(layout.storage_name(tensor.storage))
    return digest, tensor.dtype, tensor.shape, tensor.offset, tensor.stride, tensor.form


def _sharing(old: _TensorsByObject, new: _TensorsByObject) -> Iterator[Difference]:
    """Yield groups of tensors that share a storage in one package only."""
    for resource in sorted(old.keys() & new.keys()):
        # A tensor in one package only is a difference itself.
        both = {each.name for each in old[resource]} & {each.name for each in new[resource]}
        were, are = _groups(old[resource], both), _groups(new[resource], both)
        for change, groups in ((Change.REMOVED, were - are), (Change.ADDED, are - were)):
            verb = "share" if change is Change.ADDED else "no longer share"
            for group in sorted(map(sorted, groups)):
                about = f"{listed(group, _SHOWN)} {verb} one storage"
                fields = fields_of(change, {"tensors": ", ".join(group)})
                yield Difference(Part.SHARED_STORAGE, resource, change, about, fields)


def _groups(tensors: Sequence[TensorFacts], among: set[str]) -> set[frozenset[str]]:
    groups: dict[str, set[str]] = {}
    for each in tensors:
        if each.storage is not None and each.name in among:
            groups.setdefault(each.storage, set()).add(each.name)
    return {frozenset(group) for group in groups.values() if len(group) > 1}


def _unnamed(
    side: ComparedPackage, tensors: _TensorsByObject, by_crc: bool
) -> dict[tuple[object, int], tuple[str, int]]:
    """Return storages without a named tensor, by content and index among equal contents."""
    named = {
        layout.storage_name(each.storage)
        for group in tensors.values()
        for each in group
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
