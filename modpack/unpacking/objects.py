"""Loading saved objects."""

from __future__ import annotations

import io
from functools import cached_property
from typing import Any

import torch

from modpack.archive.base import Archive
from modpack.archive.writer import ArchiveWriter
from modpack.pickling.loading import unpickle_object
from modpack.pickling.storages import StorageLoader
from modpack.unpacking.records import ZipReader

__all__ = ["load_object"]


def load_object(importer: Any, archive: Archive, record: str, map_location: Any) -> Any:
    """Load one pickle of an open package.

    Args:
        importer: the package's importer.
        archive: its records.
        record: the pickle's record.
        map_location: where tensors go; see :func:`torch.load`.
    """
    data = archive.read(record)
    loaded = unpickle_object(
        data,
        resource=record,
        import_module=importer.import_module,
        storages=StorageLoader(archive, map_location, record),
        package=_Rebuilding(importer, archive, map_location),
    )
    torch._utils._validate_loaded_sparse_tensors()  # type: ignore[no-untyped-call]
    return loaded


class _Rebuilding:
    """The importer as functions that rebuild packaged objects see it, for one load.

    torch's own such functions read three attributes of the importer, which belong to one
    load and not to the importer: giving each load an object of its own keeps threads apart.
    """

    def __init__(self, importer: Any, archive: Archive, map_location: Any) -> None:
        self._importer = importer
        self._archive = archive
        self.last_map_location = map_location

    def __getattr__(self, name: str) -> Any:
        return getattr(self._importer, name)

    @cached_property
    def storage_context(self) -> Any:
        """Storages shared among the ScriptModules of a torch.package archive."""
        return torch._C.DeserializationStorageContext()

    @cached_property
    def zip_reader(self) -> Any:
        """torch's own reader where there are ScriptModules of torch.package, else ours."""
        if not any(name.startswith(".data/ts_code/") for name in self._archive.names()):
            return ZipReader(self._archive)
        return torch._C.PyTorchFileReader(_rewritten(self._archive))


def _rewritten(archive: Archive) -> io.BytesIO:
    """The package as one zip in memory: torch's reader takes neither folders nor our views."""
    buffer = io.BytesIO()
    with ArchiveWriter(buffer) as writer:
        for name in archive.names():
            writer.write(name, archive.read(name))
        writer.commit()
    buffer.seek(0)
    return buffer
