"""A record's own headers, before and behind its data, compared with the central directory.

Whether all of a zip but its contents is, byte for byte, what modpack writes around those.

A package in a zip archive, on disk or in memory.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from functools import partial
from typing import Final

from modpack.archive import layout
from modpack.archive.base import (
    CHUNK_BYTES,
    MOST_REMEMBERED,
    RAW_DEFLATE,
    REMEMBERED,
    Archive,
    BufferBytes,
    ByteSource,
    DataRange,
    FileBytes,
    Whole,
    inflate,
    inflated,
)
from modpack.archive.directory import Directory, Entry, parse_directory
from modpack.archive.layout import DEFAULT_LIMITS, Limits
from modpack.archive.zip_format import (
    DESCRIPTOR64,
    LOCAL,
    LOCAL_SIGNATURE,
    MAX16,
    MAX32,
    OTHER_END,
    OTHER_FOLDER,
    OTHER_HEADER,
    OTHER_METHOD,
    OTHER_ORDER,
    PADDING_ID,
    ZIP64_ID,
    central_header,
    descriptors,
    extra_fields,
    is_padding,
    local_header,
    own_kind,
)
from modpack.errors import ArchiveError, RepackedError


def why_inconsistent(entry: Entry, header: bytes, descriptor: bytes) -> str | None:
    """What of a record's headers is not as the directory says; None if all is.

    Args:
        entry: what the directory says about the record.
        header: the whole local header.
        descriptor: what follows the data.
    """
    fields = LOCAL.unpack_from(header)
    signature, _, kind, _, _, crc, compressed, size, name_length, _ = fields
    name_end = LOCAL.size + name_length
    if signature != LOCAL_SIGNATURE:
        return "there is no local header where one should be"
    if kind != entry.kind:
        return "the flags" if kind & MAX16 != entry.kind & MAX16 else "the method"
    if header[LOCAL.size : name_end] != entry.raw_name:
        return "the name"
    extra = extra_fields(header[name_end:])
    if extra is None:
        return "an extra field that is unknown or malformed"
    if not is_padding(extra.get(PADDING_ID, b"")):
        return "something is hidden in its padding"
    wide = extra.get(ZIP64_ID, b"")
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
    if descriptor not in descriptors(entry.crc, entry.compressed, entry.size):
        return "the sizes or the crc32 behind its data"
    return None


def check_own_form(
    source: ByteSource, directory: Directory, names: Sequence[str], deflated: Set[str]
) -> None:
    """Check a zip's directory, and the order and methods of its records.

    What stands before a record's content is checked where that is read.

    Args:
        source: the zip.
        directory: its directory.
        names: the records that the manifest lists, in its order.
        deflated: which of them are deflated.

    Raises:
        RepackedError: another program packed it.
    """
    label, present = source.label, directory.names()
    if not directory.raw_names[0].startswith(f"{layout.ROOT}/".encode()):
        raise RepackedError(label, OTHER_FOLDER)
    if not directory.end.is_own:
        raise RepackedError(label, OTHER_END)
    if not directory.is_usual:
        _check_lines(source, directory)
    expected = (*names, *filter(directory.has, layout.OUTSIDE))
    if present != expected:
        if set(present) != set(expected):
            return  # which are missing, and which are too many, is told for all packages alike
        first = next(name for name, other in zip(present, expected, strict=True) if name != other)
        raise RepackedError(label, OTHER_ORDER, first)
    kinds = zip(present, directory.kinds, strict=True)
    otherwise = deflated ^ {name for name, kind in kinds if kind > MAX16}
    if otherwise:
        raise RepackedError(label, OTHER_METHOD, min(otherwise))


def _check_lines(source: ByteSource, directory: Directory) -> None:
    content = source.read_at(directory.end.offset, directory.end.size)
    position = 0
    for name, entry in zip(directory.names(), directory.entries(), strict=True):
        line = central_header(entry)
        kind = own_kind(entry.raw_name, entry.kind >> 16)
        if entry.kind != kind or not content.startswith(line, position):
            raise RepackedError(source.label, OTHER_HEADER, name)
        position += len(line)


_AT_ONCE_BYTES: Final = 1 << 20
"""Records up to here are read with their headers, in one go."""
_USUAL_DIRECTORY: Final = 8 << 10
_USUAL_RECORDS: Final = 64 << 10
"""Bytes at the end of a small package that hold its directory, and all of it but tensors."""
_MOST_RECORDS: Final = 8 << 20
"""Bytes of the records behind a package's last tensor that are read in one go."""
_USUAL_EXTRA_BYTES: Final = 128
_LONGEST_DESCRIPTOR: Final = DESCRIPTOR64.size


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
        with content.reading_end(_USUAL_DIRECTORY):
            self._directory = parse_directory(content, limits)
        self._must_be_own = False
        self._other: str | None = None  # a record whose header is not as modpack writes it
        self._is_remembered = len(self._directory.sizes) <= REMEMBERED

    def names(self) -> tuple[str, ...]:
        return self._directory.names()

    def has(self, name: str) -> bool:
        return self._directory.has(name)

    def size(self, name: str) -> int:
        return self._entry(name).size

    def sizes(self) -> dict[str, int]:
        return self._directory.sizes_by_name()

    def stored_bytes(self) -> int:
        return self._content.size

    def crc32(self, name: str) -> int:
        return self._entry(name).crc

    def chunks(self, name: str, *, with_crc: bool = True) -> Iterator[bytes | memoryview]:
        entry = self._entry(name)
        if _is_small(entry):
            payload = self._small_payload(name, entry)
            return iter((self._small_content(name, entry, payload, with_crc),))
        pieces = self._payload(name, entry)
        if not entry.is_stored:
            pieces = self._inflated(name, entry, pieces)
        return self._with_crc_checked(name, entry, pieces) if with_crc else pieces

    def whole(self, name: str, *, with_crc: bool = True) -> Whole | None:
        entry = self._entry(name)
        if not _is_small(entry):
            return None
        payload = self._small_payload(name, entry)
        if not entry.is_stored:
            may_be_known = self._is_remembered and entry.size <= MOST_REMEMBERED
            found = (inflated if may_be_known else inflate)(payload, entry.size)
            if found is not None and found.crc == entry.crc:
                return found
        content = self._small_content(name, entry, payload, with_crc)
        return Whole(content, entry.crc, hashlib.sha256(content).hexdigest())

    @contextmanager
    def keeping(self) -> Iterator[None]:
        # A read for each of thousands of sources would take a tenth of the time of checking them.
        behind_tensors = self._content.size - self._directory.start_of_last(_MOST_RECORDS)
        length = max(_USUAL_RECORDS, behind_tensors)
        with super().keeping(), self._content.reading_end(length):
            yield

    def read_view(self, name: str) -> memoryview:
        entry = self._entry(name)
        view = self._view(name, entry)
        if view is None:
            return super().read_view(name)
        self._check_crc(name, entry, view)
        if self._verifier is not None:
            self._verifier.check(self.source, name, view)
        return view

    def copied(self, name: str) -> bytearray:
        entry, verifier = self._entry(name), self._verifier
        if verifier is None or entry.size < _AT_ONCE_BYTES:
            return super().copied(name)
        view = self._view(name, entry)
        if view is None:
            return super().copied(name)
        from modpack.archive.manifest import Threads  # threads come with a lot of Python's own

        threads = Threads()
        try:
            checked = threads.run(partial(verifier.check, self.source, name), view)
            content = bytearray(view)
            self._check_crc(name, entry, view)
            checked.result()
        finally:
            threads.close()
        return content

    def data_range(self, name: str) -> DataRange | None:
        entry = self._entry(name)
        if not (entry.is_stored and isinstance(self._content, FileBytes)):
            return None
        return DataRange(self._content.path, self._locate(name, entry), entry.size)

    def require_own_form(self, names: Sequence[str], deflated: Set[str]) -> None:
        check_own_form(self._content, self._directory, names, deflated)
        if self._other is not None:
            raise RepackedError(self.source, OTHER_HEADER, self._other)
        self._must_be_own = True

    def deflated_sha256(self, name: str) -> str | None:
        entry, digest = self._entry(name), hashlib.sha256()
        if entry.is_stored:
            return None
        for piece in self._payload(name, entry):
            digest.update(piece)
        return digest.hexdigest()

    def has_changed(self) -> bool:
        return isinstance(self._content, FileBytes) and self._content.has_changed()

    def close(self) -> None:
        self._kept.clear()
        self._content.close()

    def _view(self, name: str, entry: Entry) -> memoryview | None:
        """A record's content where it lies; None if it is in a file, or has to be inflated."""
        if not (entry.is_stored and isinstance(self._content, BufferBytes)):
            return None
        return self._content.view_at(self._locate(name, entry), entry.size)

    def _entry(self, name: str) -> Entry:
        entry = self._directory.get(name)
        if entry is None:
            raise self._missing(name)
        return entry

    def _locate(self, name: str, entry: Entry) -> int:
        """Offset of a record's data in the archive."""
        likely = LOCAL.size + len(entry.raw_name) + _USUAL_EXTRA_BYTES
        start = self._content.read_at(entry.offset, min(likely, entry.end - entry.offset))
        return entry.offset + self._data_start(name, entry, start)

    def _small_payload(self, name: str, entry: Entry) -> bytes:
        """A small record's data as it lies in the archive, read in one go with its headers."""
        everything = self._content.read_at(entry.offset, entry.end - entry.offset)
        first = self._data_start(name, entry, everything)
        return everything[first : first + entry.compressed]

    def _small_content(self, name: str, entry: Entry, payload: bytes, with_crc: bool) -> bytes:
        content = payload
        if not entry.is_stored:
            content = b"".join(self._inflated(name, entry, (payload,)))
        if with_crc:
            self._check_crc(name, entry, content)
        return content

    def _payload(self, name: str, entry: Entry) -> Iterator[bytes | memoryview]:
        """A record's data as it lies in the archive."""
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
        length = entry.end - entry.offset
        own = local_header(entry, align=layout.is_storage(name))
        if len(own) + entry.compressed == length and start.startswith(own):
            return len(own)
        lengths: tuple[int, int] = LOCAL.unpack_from(start)[-2:]
        header_length = LOCAL.size + sum(lengths)
        after = header_length + entry.compressed
        if not 0 <= length - after <= _LONGEST_DESCRIPTOR:
            raise ArchiveError(self.source, "its data does not end where the next record is", name)
        if len(start) < header_length:
            start = self._content.read_at(entry.offset, header_length)
        if len(start) == length:
            descriptor = start[after:]
        else:
            descriptor = self._content.read_at(entry.offset + after, length - after)
        reason = why_inconsistent(entry, start[:header_length], descriptor)
        if reason is not None:
            raise ArchiveError(self.source, f"its headers contradict each other: {reason}", name)
        if self._must_be_own:
            raise RepackedError(self.source, OTHER_HEADER, name)
        self._other = name
        return header_length

    def _inflated(
        self, name: str, entry: Entry, pieces: Iterable[bytes | memoryview]
    ) -> Iterator[bytes | memoryview]:
        inflater, left = zlib.decompressobj(RAW_DEFLATE), entry.size
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

    def _check_crc(self, name: str, entry: Entry, content: bytes | memoryview) -> None:
        if zlib.crc32(content) != entry.crc:
            raise self._damaged(name)

    def _damaged(self, name: str) -> ArchiveError:
        return ArchiveError(self.source, "its content is damaged: the crc32 is wrong", name)


def _is_small(entry: Entry) -> bool:
    return entry.end - entry.offset <= _AT_ONCE_BYTES and entry.size <= CHUNK_BYTES


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
