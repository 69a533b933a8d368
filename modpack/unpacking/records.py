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
        return self._archive.has(path)

    def get_record(self, name: str) -> bytes:
        """A record's contents.

        Raises:
            RecordNotFoundError: there is no such record.
        """
        return self._archive.read(name)

    def get_all_records(self) -> list[str]:
        """The names of all records."""
        return list(self._archive.names())
