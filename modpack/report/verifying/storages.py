"""Whether the storages of a package are those that its objects refer to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.report.auditing.facts import Finding
from modpack.report.verifying.codes import found
from modpack.report.verifying.ownrecords import OwnRecords
from modpack.report.wording import counted
from modpack.security.pickle_names import PickledStorage, read_pickle

__all__ = [
    "check_pickled_storages",
    "check_trial_storages",
    "check_unused_storages",
    "script_storages",
]

_SHOWN: Final = 4
_ANCESTORS_SCRIPTS: Final = ".data/ts_code/"
"""ScriptModules in packages of torch.package: their keys are the names of records."""
_ITEM_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("Untyped", "Byte", "Char", "Bool", "QUInt8", "QInt8"), 1),
    **dict.fromkeys(("QUInt4x2", "QUInt2x4"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Int", "Float", "QInt32"), 4),
    **dict.fromkeys(("Long", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
"""Bytes of one element, by the name of torch's storage class without ``Storage``."""


def check_pickled_storages(
    archive: Archive, storages: Mapping[str, tuple[PickledStorage, ...]]
) -> Iterator[Finding]:
    """Whether the storages that pickles refer to are there, and large enough.

    Args:
        archive: the package.
        storages: what each pickle refers to, by its record.
    """
    for pickle, of_one in storages.items():
        for each in of_one:
            reason = _problem(archive, each, _record(pickle, each))
            if reason is not None:
                place = f"{pickle}, byte {each.position}"
                yield found("storage-missing", pickle, reason, place)


def script_storages(archive: Archive) -> Mapping[str, tuple[PickledStorage, ...]]:
    """The storages of ScriptModules in a package of torch.package, by the record of the pickle.

    Args:
        archive: the package.
    """
    records = (
        name
        for name in archive.names()
        if name.startswith(_ANCESTORS_SCRIPTS) and name.endswith(".pkl")
    )
    return {record: read_pickle(archive.read(record)).storages for record in records}


def check_trial_storages(archive: Archive, own: OwnRecords) -> Iterator[Finding]:
    """Whether the tensors of recorded outputs are there in full.

    Args:
        archive: the package.
        own: its records, decoded.
    """
    for record, output in own.outputs.items():
        for tensor in output.tensors:
            if not layout.is_storage(tensor.record) or not archive.has(tensor.record):
                yield found("storage-missing", record, f"{tensor.record!r:.120} is not there")
            elif tensor.size_bytes not in (None, archive.size(tensor.record)):
                text = (
                    f"{tensor.record!r} should have {tensor.size_bytes} bytes, and has "
                    f"{archive.size(tensor.record)}"
                )
                yield found("storage-missing", record, text)


def check_unused_storages(
    archive: Archive, storages: Mapping[str, tuple[PickledStorage, ...]], own: OwnRecords
) -> Iterator[Finding]:
    """Which storages nothing refers to.

    Args:
        archive: the package.
        storages: what each pickle refers to, by its record.
        own: its records, decoded.
    """
    used = {_record(pickle, each) for pickle, of_one in storages.items() for each in of_one}
    used |= {tensor.record for output in own.outputs.values() for tensor in output.tensors}
    unused = [name for name in archive.names() if layout.is_storage(name) and name not in used]
    if unused:
        more = f" and {len(unused) - _SHOWN} more" if len(unused) > _SHOWN else ""
        size = sum(map(archive.size, unused))
        text = (
            f"no saved object refers to {', '.join(unused[:_SHOWN])}{more} "
            f"({counted(size, 'byte')})"
        )
        yield found("storage-unused", unused[0], text)


def _record(pickle: str, storage: PickledStorage) -> str:
    """The record of a storage that a pickle refers to."""
    is_script = pickle.startswith(_ANCESTORS_SCRIPTS)
    return layout.storage_name(storage.key.removesuffix(".storage") if is_script else storage.key)


def _problem(archive: Archive, storage: PickledStorage, record: str) -> str | None:
    """Why a pickle cannot have a storage; None if it can."""
    if not layout.is_storage(record) or not archive.has(record):
        return f"it refers to the storage {record!r:.120}, which is not there"
    item = _ITEM_BYTES.get(storage.kind.rpartition(".")[2].removesuffix("Storage"))
    if item is None or storage.size is None:
        return None
    if storage.size < 0 or storage.size * item > archive.size(record):
        return (
            f"it needs {storage.size * item} bytes of the storage {record!r}, which has "
            f"{archive.size(record)}"
        )
    return None
