"""The named tensors of a package, read from its record and held against its storages."""

from __future__ import annotations

from collections.abc import Mapping

from modpack.archive import layout
from modpack.archive.base import Archive, RecordVerifier
from modpack.core.tensors import ITEM_BYTES, TENSORS_VERSION, TensorFacts, tensors_from_json
from modpack.report.recorded import checking, read_document, refuse_newer

__all__ = ["read_tensors"]


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
        for tensor in (each for of_one in tensors.values() for each in of_one):
            _check_storage(archive, tensor)
        return tensors


def _check_storage(archive: Archive, tensor: TensorFacts) -> None:
    if tensor.storage is None:
        return
    record = layout.storage_name(tensor.storage)
    if not layout.is_storage(record) or not archive.has(record):
        reason = f"{tensor.name!r} is in the storage {tensor.storage!r}, which is not there"
        raise ValueError(reason)
    needed = (tensor.offset + tensor.span) * ITEM_BYTES.get(tensor.dtype, 1)
    if tensor.count and needed > archive.size(record):
        raise ValueError(
            f"{tensor.name!r} needs {needed} bytes of the storage {tensor.storage!r}, which has "
            f"{archive.size(record)}"
        )
