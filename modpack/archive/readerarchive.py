"""A package that torch's own reader has opened."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from modpack.archive import layout
from modpack.archive.base import Archive, DataRange
from modpack.archive.limits import DEFAULT_LIMITS, Limits
from modpack.archive.recordnames import find_collision, find_unsafe
from modpack.errors import ArchiveError, NotAPackageError

__all__ = ["ReaderArchive", "RecordReader"]


@runtime_checkable
class RecordReader(Protocol):
    """The methods of ``torch._C.PyTorchFileReader`` that reading a package takes."""

    def get_all_records(self) -> list[str]:
        """Return the names of all records."""

    def get_record(self, name: str, /) -> bytes:
        """Return a record's content."""


class ReaderArchive(Archive):
    """The records of a reader, which stays the caller's own.

    A reader does not report file offsets, so tensors are copied instead of mapped.

    Args:
        reader: An open ``torch._C.PyTorchFileReader``, or an object with its methods.
        limits: The number of records that it may have.

    Raises:
        NotAPackageError: If the archive is not a package.
        ArchiveError: If there are too many records, or their names are unsafe or ambiguous.
    """

    def __init__(self, reader: RecordReader, limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__("<pytorch_file_reader>")
        self._reader: RecordReader | None = reader
        self._names = tuple(reader.get_all_records())
        if len(self._names) > limits.max_records:
            raise ArchiveError(self.source, f"it has more than {limits.max_records} records")
        problem = find_unsafe(self._names) or find_collision(self._names)
        if problem is not None:
            raise ArchiveError(self.source, problem[1], problem[0])
        self._sizes: dict[str, int | None] = dict.fromkeys(self._names)
        if not any(map(self.has, layout.VERSIONS)):
            raise NotAPackageError(self.source, "it has no version record")

    def names(self) -> tuple[str, ...]:
        return self._names

    def has(self, name: str) -> bool:
        return name in self._sizes

    def size(self, name: str) -> int:
        known = self._sizes.get(name)
        if known is None:
            ask = getattr(self._reader, "get_record_size", None)  # older torch does not have it
            known = int(ask(name)) if ask is not None and self.has(name) else len(self._get(name))
            self._sizes[name] = known
        return known

    def stored_bytes(self) -> int:
        return sum(map(self.size, self._names))

    def crc32(self, name: str) -> int:
        return zlib.crc32(self._get(name))

    def chunks(self, name: str, *, with_crc: bool = True) -> Iterator[bytes | memoryview]:
        return iter((self._get(name),))

    def data_range(self, name: str) -> DataRange | None:
        self._require(name)
        return None

    def close(self) -> None:
        self._reader = None
        self._kept.clear()

    def _get(self, name: str) -> bytes:
        reader = self._require(name)
        try:
            return reader.get_record(name)
        except (RuntimeError, OSError) as failure:  # torch's, for whatever is wrong with the file
            raise ArchiveError(self.source, f"it cannot be read: {failure}", name) from failure

    def _require(self, name: str) -> RecordReader:
        if self._reader is None:
            raise ArchiveError(self.source, "it was closed")
        if not self.has(name):
            raise self._missing(name)
        return self._reader
