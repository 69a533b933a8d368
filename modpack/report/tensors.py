"""The named tensors of a package, read from its record and held against its storages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from modpack.archive import layout
from modpack.archive.base import Archive, RecordVerifier
from modpack.core.tensors import (
    DTYPE_ALIASES,
    ITEM_BYTES,
    PACKED_DTYPES,
    QUANTIZED_DTYPES,
    TENSORS_VERSION,
    TensorFacts,
    tensors_from_json,
)
from modpack.report.recorded import checking, read_document, refuse_newer

__all__ = ["read_tensors"]

_SHOWN: Final = 5


def read_tensors(
    archive: Archive, verify: RecordVerifier
) -> Mapping[str, tuple[TensorFacts, ...]] | None:
    """The tensors of each saved object, by the object's record, in the order of its state dict.

    The storages that they name are there and large enough for them; they are not read.

    Args:
        archive: the package.
        verify: its manifest.

    Returns:
        None if the package does not record them: an older version of modpack wrote it, or no
        object was saved.

    Raises:
        UnsupportedVersionError: a newer modpack wrote it.
        ArchiveError: the record is damaged.
    """
    if not archive.has(layout.TENSORS):
        return None
    with checking(archive, layout.TENSORS):
        document = read_document(archive, layout.TENSORS, verify)
        refuse_newer(archive, layout.TENSORS, document["version"], TENSORS_VERSION)
        tensors = tensors_from_json(document)
        _check_storages(archive, (each for of_one in tensors.values() for each in of_one))
        return tensors


def _check_storages(archive: Archive, tensors: Iterable[TensorFacts]) -> None:
    sizes = archive.sizes()
    problems = list(filter(None, (_storage_problem(sizes, tensor) for tensor in tensors)))
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise ValueError("; ".join(problems[:_SHOWN]) + more)


def _storage_problem(sizes: Mapping[str, int], tensor: TensorFacts) -> str | None:
    """Why a tensor cannot lie where it is said to, among records of such sizes; None if it can."""
    if tensor.storage is None:
        return None
    record = layout.storage_name(tensor.storage)
    size = sizes.get(record)
    if size is None or not layout.is_storage(record):
        return f"{tensor.name!r:.200} is in the storage {tensor.storage!r:.80}, which is not there"
    if tensor.dtype in DTYPE_ALIASES:
        return f"{tensor.name!r:.200} is of the type {tensor.dtype!r}, which is no type's own name"
    if tensor.dtype in QUANTIZED_DTYPES and tensor.form != "quantized":
        return f"{tensor.name!r:.200} is of the type {tensor.dtype!r}, but not quantized"
    needed = _bytes_needed(tensor)
    if needed > size:
        return (
            f"{tensor.name!r:.200} needs {needed} bytes of the storage {tensor.storage!r}, which "
            f"has {size}"
        )
    return None


def _bytes_needed(tensor: TensorFacts) -> int:
    """How many bytes a storage has at least that holds a tensor; one each of an unknown type."""
    if not tensor.count:
        return 0
    end = tensor.offset + tensor.span
    if tensor.dtype in PACKED_DTYPES:
        return -(-end // PACKED_DTYPES[tensor.dtype])
    return end * ITEM_BYTES.get(tensor.dtype, 1)
