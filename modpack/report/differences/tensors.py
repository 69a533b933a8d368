"""How the tensors of two packages differ: by name where the packages record names."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from modpack.archive import layout
from modpack.core.tensors import TensorFacts
from modpack.report.differences.elements import ElementComparer
from modpack.report.differences.facts import (
    Change,
    SharingDifference,
    StorageDifference,
    StoragesDifference,
    TensorDifference,
    Values,
)
from modpack.report.differences.modules import changed_fields
from modpack.report.differences.sides import Side

__all__ = ["TensorsDifference", "compare_tensors"]

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
