"""The records of an open package under the names that torch gives to their reader."""

from __future__ import annotations

from modpack.archive.base import Archive

__all__ = ["ZipReader"]


class ZipReader:
    """What code written for torch.package expects to find as ``importer.zip_reader``.

    Args:
        archive: the open package.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def has_record(self, path: str) -> bool:
        """Whether there is a record of this name."""
        return self._archive.has(_require_record_name(path, "path"))

    def get_record(self, name: str) -> bytes:
        """A record's contents.

        Raises:
            TypeError: ``name`` is no string.
            RecordNotFoundError: there is no such record.
        """
        return self._archive.read(_require_record_name(name, "name"))

    def get_all_records(self) -> list[str]:
        """The names of all records."""
        return list(self._archive.names())


def _require_record_name(name: object, argument: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{argument} must be a record's name (str), not {type(name).__name__}")
    return name
