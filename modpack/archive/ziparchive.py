"""A package in a zip archive, on disk or in memory."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

from modpack.archive import zipformat
from modpack.archive.base import CHUNK_BYTES, Archive, DataRange
from modpack.archive.bytesources import BufferBytes, ByteSource, FileBytes
from modpack.archive.directory import Entry, parse_directory
from modpack.archive.limits import DEFAULT_LIMITS, Limits
from modpack.archive.zipformat import MAX16, MAX32
from modpack.errors import ArchiveError

__all__ = ["ZipArchive"]

_RAW_DEFLATE: Final = -15
_AT_ONCE_BYTES: Final = 1 << 20
"""Records up to here are read with their headers, in one go."""
_USUAL_EXTRA_BYTES: Final = 128
_LONGEST_DESCRIPTOR: Final = zipformat.DESCRIPTOR64.size


class ZipArchive(Archive):
    """A zip archive.

    The central directory is checked when it is opened. A record's own headers are compared
    with it when the record is read or located.

    Args:
        content: the archive's bytes; closed together with the archive.
        limits: what the archive may claim.

    Raises:
        NotAPackageError: this is no zip archive, or holds no package.
        ArchiveError: the archive is damaged, ambiguous, unsafe or too large.
    """

    def __init__(self, content: ByteSource, limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__(content.label)
        self._content = content
        self._directory = parse_directory(content, limits)

    def names(self) -> tuple[str, ...]:
        return self._directory.names()

    def has(self, name: str) -> bool:
        return self._directory.has(name)

    def size(self, name: str) -> int:
        return self._entry(name).size

    def stored_bytes(self) -> int:
        return self._content.size

    def crc32(self, name: str) -> int:
        return self._entry(name).crc

    def chunks(self, name: str, *, with_crc: bool = True) -> Iterator[bytes | memoryview]:
        entry = self._entry(name)
        pieces = self._payload(name, entry)
        if not entry.is_stored:
            pieces = self._inflated(name, entry, pieces)
        return self._with_crc_checked(name, entry, pieces) if with_crc else pieces

    def read_view(self, name: str) -> memoryview:
        entry = self._entry(name)
        if not (entry.is_stored and isinstance(self._content, BufferBytes)):
            return super().read_view(name)
        view = self._content.view_at(self._locate(name, entry), entry.size)
        if zlib.crc32(view) != entry.crc:
            raise self._damaged(name)
        return view

    def data_range(self, name: str) -> DataRange | None:
        entry = self._entry(name)
        if not (entry.is_stored and isinstance(self._content, FileBytes)):
            return None
        return DataRange(self._content.path, self._locate(name, entry), entry.size)

    def has_changed(self) -> bool:
        return isinstance(self._content, FileBytes) and self._content.has_changed()

    def close(self) -> None:
        self._content.close()

    def _entry(self, name: str) -> Entry:
        entry = self._directory.get(name)
        if entry is None:
            raise self._missing(name)
        return entry

    def _locate(self, name: str, entry: Entry) -> int:
        """Offset of a record's data in the archive."""
        likely = zipformat.LOCAL.size + len(entry.raw_name) + _USUAL_EXTRA_BYTES
        start = self._content.read_at(entry.offset, min(likely, entry.end - entry.offset))
        return entry.offset + self._data_start(name, entry, start)

    def _payload(self, name: str, entry: Entry) -> Iterator[bytes | memoryview]:
        """A record's data as it lies in the archive."""
        length = entry.end - entry.offset
        if length <= _AT_ONCE_BYTES:
            everything = self._content.read_at(entry.offset, length)
            first = self._data_start(name, entry, everything)
            yield everything[first : first + entry.compressed]
            return
        position = self._locate(name, entry)
        last = position + entry.compressed
        for offset in range(position, last, CHUNK_BYTES):
            yield self._content.read_at(offset, min(CHUNK_BYTES, last - offset))

    def _data_start(self, name: str, entry: Entry, start: bytes) -> int:
        """Checks a record's local header and descriptor; the distance from header to data.

        Args:
            name: the record.
            entry: what the directory says about it.
            start: the first bytes of the local header, or all bytes up to the next record.
        """
        lengths: tuple[int, int] = zipformat.LOCAL.unpack_from(start)[-2:]
        header_length = zipformat.LOCAL.size + sum(lengths)
        after = header_length + entry.compressed
        length = entry.end - entry.offset
        if not 0 <= length - after <= _LONGEST_DESCRIPTOR:
            raise ArchiveError(self.source, "its data does not end where the next record is", name)
        if len(start) < header_length:
            start = self._content.read_at(entry.offset, header_length)
        if len(start) == length:
            descriptor = start[after:]
        else:
            descriptor = self._content.read_at(entry.offset + after, length - after)
        reason = _why_inconsistent(entry, start[:header_length], descriptor)
        if reason is not None:
            raise ArchiveError(self.source, f"its headers contradict each other: {reason}", name)
        return header_length

    def _inflated(
        self, name: str, entry: Entry, pieces: Iterator[bytes | memoryview]
    ) -> Iterator[bytes | memoryview]:
        inflater, left = zlib.decompressobj(_RAW_DEFLATE), entry.size
        try:
            for piece in pieces:
                for chunk in _inflate(inflater, piece, left):
                    left -= len(chunk)
                    yield chunk
        except zlib.error as error:
            raise ArchiveError(self.source, f"it cannot be inflated: {error}", name) from error
        if left or not inflater.eof or inflater.unused_data:
            raise ArchiveError(self.source, "it does not inflate to its stated size", name)

    def _with_crc_checked(
        self, name: str, entry: Entry, pieces: Iterator[bytes | memoryview]
    ) -> Iterator[bytes | memoryview]:
        crc = 0
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
            yield piece
        if crc != entry.crc:
            raise self._damaged(name)

    def _damaged(self, name: str) -> ArchiveError:
        return ArchiveError(self.source, "its content is damaged: the crc32 is wrong", name)


def _inflate(
    inflater: zlib._Decompress, piece: bytes | memoryview, allowed: int
) -> Iterator[bytes]:
    """Inflates one piece, to at most one byte more than ``allowed``: that betrays a bomb."""
    pending: bytes | memoryview = piece
    while allowed >= 0:
        wanted = min(allowed + 1, CHUNK_BYTES)
        chunk = inflater.decompress(pending, wanted)
        allowed -= len(chunk)
        yield chunk
        pending = inflater.unconsumed_tail
        if not pending and len(chunk) < wanted:
            return


def _why_inconsistent(entry: Entry, header: bytes, descriptor: bytes) -> str | None:
    """Compares a local header, and what follows the data, with the directory."""
    fields = zipformat.LOCAL.unpack_from(header)
    signature, _, kind, _, _, crc, compressed, size, name_length, _ = fields
    name_end = zipformat.LOCAL.size + name_length
    if signature != zipformat.LOCAL_SIGNATURE:
        return "there is no local header where one should be"
    if kind != entry.kind:
        return "the flags" if kind & MAX16 != entry.kind & MAX16 else "the method"
    if header[zipformat.LOCAL.size : name_end] != entry.raw_name:
        return "the name"
    extra = zipformat.extra_fields(header[name_end:])
    if extra is None:
        return "an extra field that is unknown or malformed"
    if not zipformat.is_padding(extra.get(zipformat.PADDING_ID, b"")):
        return "something is hidden in its padding"
    wide = extra.get(zipformat.ZIP64_ID, b"")
    if entry.has_descriptor:
        return _why_inconsistent_descriptor(entry, (crc, compressed, size), wide, descriptor)
    stated = (compressed, size, wide)
    plain = (entry.compressed, entry.size, b"")
    zip64 = (MAX32, MAX32, struct.pack("<QQ", entry.size, entry.compressed))
    if crc != entry.crc:
        return "the crc32"
    if stated not in (plain, zip64):
        return "the compressed size" if size == entry.size else "the size"
    return "something lies behind its data" if descriptor else None


def _why_inconsistent_descriptor(
    entry: Entry, stated: tuple[int, int, int], wide: bytes, descriptor: bytes
) -> str | None:
    # What torch writes: zeros in the header, and in its zip64 field what the directory's has,
    # but for the compressed size, which it does not know yet.
    large = [n for n in (entry.size, entry.compressed, entry.offset) if n >= MAX32]
    unknown = [0 if i == 1 and entry.size >= MAX32 else n for i, n in enumerate(large)]
    known_forms = [struct.pack(f"<{len(large)}Q", *numbers) for numbers in (large, unknown)]
    if any(stated) or (wide and wide not in known_forms):
        return "sizes stand before its data and behind it"
    if descriptor not in zipformat.descriptors(entry.crc, entry.compressed, entry.size):
        return "the sizes or the crc32 behind its data"
    return None
