"""Reader for packages in zip archives, on disk or in memory.

Opening an archive checks its central directory. Reading or locating a record compares its local
header and data descriptor with the directory. From format 2 on, all bytes of a zip other than
record contents must be exactly those that modpack writes.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from typing import BinaryIO, Final, NoReturn, TypeVar

from modpack import services
from modpack.archive import layout
from modpack.archive.base import (
    CHUNK_BYTES,
    Archive,
    BufferBytes,
    ByteSource,
    DataRange,
    FileBytes,
    RecordDigest,
    compute_digest,
)
from modpack.archive.directory import CentralDirectory, parse_directory
from modpack.archive.zip_format import (
    DESCRIPTOR64,
    LOCAL,
    LOCAL_SIGNATURE,
    MAX16,
    MAX32,
    PADDING_ID,
    RAW_DEFLATE,
    REPACKED,
    REPACKED_HINT,
    ZIP64_ID,
    ZipEntry,
    canonical_kind,
    central_header,
    descriptors,
    extra_fields,
    is_padding,
    local_header,
)
from modpack.core.names import url_of
from modpack.errors import ArchiveError, NotAPackageError, RepackedError

Source = TypeVar("Source")

_AT_ONCE_BYTES: Final = 1 << 20
"""Bytes of a record to read together with its header."""
_USUAL_EXTRA_BYTES: Final = 128
_OTHER_HEADER: Final = "the headers are not those that modpack writes"


def find_header_problem(entry: ZipEntry, header: bytes, descriptor: bytes) -> str | None:
    """Return how a local header differs from the directory or from the format, or None.

    Args:
        entry: The record's entry in the directory.
        header: The complete local header.
        descriptor: The bytes after the data.
    """
    fields = LOCAL.unpack_from(header)
    signature, _, kind, _, _, crc, compressed, size, name_length, _ = fields
    name_end = LOCAL.size + name_length
    if signature != LOCAL_SIGNATURE:
        return "the local header is missing"
    if kind != entry.kind:
        return _differ("flags" if kind & MAX16 != entry.kind & MAX16 else "method")
    # Some readers use the local header and others the directory: both must see the same record.
    if header[LOCAL.size : name_end] != entry.raw_name:
        return _differ("name")
    extra = extra_fields(header[name_end:])
    if extra is None:
        return "the local header has an unknown or malformed extra field"
    if not is_padding(extra.get(PADDING_ID, b"")):
        return "the padding of the local header contains data"
    wide = extra.get(ZIP64_ID, b"")
    if entry.has_descriptor:
        return _find_descriptor_problem(entry, (crc, compressed, size), wide, descriptor)
    stated = (compressed, size, wide)
    plain = (entry.compressed, entry.size, b"")
    zip64 = (MAX32, MAX32, struct.pack("<QQ", entry.size, entry.compressed))
    if crc != entry.crc:
        return _differ("CRC-32")
    if stated not in (plain, zip64):
        return _differ("compressed size" if size == entry.size else "size")
    return "there are extra bytes after the data" if descriptor else None


def _differ(what: str) -> str:
    return f"the {what} in the local header is not that in the directory"


def _find_descriptor_problem(
    entry: ZipEntry, stated: tuple[int, int, int], wide: bytes, descriptor: bytes
) -> str | None:
    # torch writes zeros in the local header. Its zip64 field equals that of the directory, except
    # for the compressed size, which is not known yet.
    large = [n for n in (entry.size, entry.compressed, entry.offset) if n >= MAX32]
    unknown = [0 if i == 1 and entry.size >= MAX32 else n for i, n in enumerate(large)]
    known_forms = [struct.pack(f"<{len(large)}Q", *numbers) for numbers in (large, unknown)]
    if any(stated) or (wide and wide not in known_forms):
        return "the sizes are stated both before and after the data"
    if descriptor not in descriptors(entry.crc, entry.compressed, entry.size):
        return "the data descriptor does not match the directory"
    return None


class ZipArchive(Archive):
    """A zip archive.

    Args:
        content: The archive's bytes, which are closed with the archive.

    Attributes:
        content: See ``Args``.

    Raises:
        NotAPackageError: If this is not a zip archive, or not a package.
        ArchiveError: If the archive is damaged, ambiguous, unsafe, or too large.
    """

    def __init__(self, content: ByteSource) -> None:
        super().__init__(content.label)
        self.content = content
        self._directory = parse_directory(content)
        self._names = tuple(self._directory.entries)
        self._must_be_canonical = False
        self._noncanonical_record: str | None = None

    def has(self, name: str) -> bool:
        return name in self._directory.entries

    def size(self, name: str) -> int:
        return self._entry(name).size

    def sizes(self) -> dict[str, int]:
        return {name: entry.size for name, entry in self._directory.entries.items()}

    def offsets(self) -> dict[str, int]:
        return {name: entry.offset for name, entry in self._directory.entries.items()}

    def stored_bytes(self) -> int:
        return self.content.size

    def crc32(self, name: str) -> int:
        return self._entry(name).crc

    def chunks(self, name: str) -> Iterator[bytes | memoryview]:
        return self._chunks(name, self._entry(name))

    def read_start(self, name: str, size: int) -> bytes:
        # Only the end of a deflated record shows whether it inflates to the stated size. Reading
        # it needs no further read while the record fits into one chunk.
        entry = self._entry(name)
        pieces = self._chunks(name, entry, with_crc=False)
        is_small = entry.size <= CHUNK_BYTES
        return (b"".join(pieces) if is_small else next(pieces, b""))[:size]

    def digest(
        self, name: str, advance: Callable[[int], object], *, with_crc: bool = True
    ) -> RecordDigest:
        entry, deflated = self._entry(name), hashlib.sha256()
        digest = compute_digest(self._chunks(name, entry, deflated.update, with_crc), advance)
        return digest if entry.is_stored else digest._replace(deflated=deflated.hexdigest())

    def read_view(self, name: str) -> memoryview:
        entry = self._entry(name)
        if not (entry.is_stored and isinstance(self.content, BufferBytes)):
            return super().read_view(name)
        view = self.content.view_at(self._locate(name, entry), entry.size)
        self._check_crc(name, entry, zlib.crc32(view))
        if self._manifest is not None:
            self._manifest.check(self.path, name, view)
        return view

    def data_range(self, name: str) -> DataRange | None:
        entry = self._entry(name)
        if not (entry.is_stored and isinstance(self.content, FileBytes)):
            return None
        return DataRange(self.content.path, self._locate(name, entry), entry.size)

    def require_canonical_zip(self, names: Sequence[str], deflated: Set[str]) -> None:
        # A record's local header is checked when the record is read.
        directory = self._directory
        if directory.root != layout.ROOT.encode():
            self._reject_repacked(f"the top-level folder is not {layout.ROOT!r}")
        if not directory.has_canonical_end:
            self._reject_repacked("the end record is not the one that modpack writes")
        if not directory.is_usual:
            self._require_canonical_headers(directory)
        expected = (*names, *filter(self.has, layout.UNLISTED))
        # The manifest check reports missing and undeclared records.
        if set(self._names) == set(expected):
            pairs = zip(self._names, expected, strict=True)
            first = next((name for name, other in pairs if name != other), None)
            if first is not None:
                self._reject_repacked("the records are not in the order of the manifest", first)
            inflated = {n for n, entry in directory.entries.items() if not entry.is_stored}
            # A record may be stored or deflated with the same content, so its digest does not show
            # it.
            if inflated != deflated:
                reason = "the compression method does not match the manifest"
                self._reject_repacked(reason, min(inflated ^ deflated))
        if self._noncanonical_record is not None:
            self._reject_repacked(_OTHER_HEADER, self._noncanonical_record)
        self._must_be_canonical = True

    def has_changed(self) -> bool:
        return self.content.has_changed()

    def open_next_to(self, name: str) -> ByteSource:
        return self.content.open_next_to(name)

    def close(self) -> None:
        self.content.close()

    def _require_canonical_headers(self, directory: CentralDirectory) -> None:
        content = self.content.read_at(directory.offset, directory.size)
        position = 0
        for name, entry in directory.entries.items():
            line = central_header(entry)
            kind = canonical_kind(entry.raw_name, entry.kind >> 16)
            if entry.kind != kind or not content.startswith(line, position):
                self._reject_repacked(_OTHER_HEADER, name)
            position += len(line)

    def _reject_repacked(self, reason: str, name: str | None = None) -> NoReturn:
        raise RepackedError(self.path, f"{reason}: {REPACKED}", name, hint=REPACKED_HINT)

    def _entry(self, name: str) -> ZipEntry:
        entry = self._directory.entries.get(name)
        if entry is None:
            raise self._missing(name)
        return entry

    def _locate(self, name: str, entry: ZipEntry) -> int:
        """Return the offset of a record's data in the archive."""
        likely = LOCAL.size + len(entry.raw_name) + _USUAL_EXTRA_BYTES
        start = self.content.read_at(entry.offset, min(likely, entry.end - entry.offset))
        return entry.offset + self._data_start(name, entry, start)

    def _chunks(
        self,
        name: str,
        entry: ZipEntry,
        update: Callable[[bytes], object] | None = None,
        with_crc: bool = True,
    ) -> Iterator[bytes]:
        """Yield a record's content, and check its CRC-32 at the end.

        Args:
            name: The record.
            entry: Its entry in the directory.
            update: Called with each piece of the data as stored in the archive.
            with_crc: Whether to check the CRC-32.
        """
        crc, pieces = 0, self._payload(name, entry, update)
        for chunk in pieces if entry.is_stored else self._inflate(name, entry, pieces):
            if with_crc:
                crc = zlib.crc32(chunk, crc)
            yield chunk
        if with_crc:
            self._check_crc(name, entry, crc)

    def _payload(
        self, name: str, entry: ZipEntry, update: Callable[[bytes], object] | None
    ) -> Iterator[bytes]:
        length = entry.end - entry.offset
        # One read returns the header and, for most records, all of the data.
        start = self.content.read_at(entry.offset, min(length, _AT_ONCE_BYTES))
        first = self._data_start(name, entry, start)
        last = first + entry.compressed
        piece, position = start[first:last], len(start)
        while True:
            if update is not None:
                update(piece)
            yield piece
            if position >= last:
                return
            piece = self.content.read_at(entry.offset + position, min(CHUNK_BYTES, last - position))
            position += len(piece)

    def _data_start(self, name: str, entry: ZipEntry, start: bytes) -> int:
        """Check a record's local header and descriptor; return the header's length.

        Args:
            name: The record.
            entry: Its entry in the directory.
            start: The first bytes of the local header, or all bytes up to the next record.
        """
        length = entry.end - entry.offset
        own = local_header(entry, align=layout.is_storage(name))
        # The header that modpack writes needs no parsing. Others are parsed and compared.
        if len(own) + entry.compressed == length and start.startswith(own):
            return len(own)
        lengths: tuple[int, int] = LOCAL.unpack_from(start)[-2:]
        header_length = LOCAL.size + sum(lengths)
        after = header_length + entry.compressed
        if not 0 <= length - after <= DESCRIPTOR64.size:
            reason = "the data does not end where the next record starts"
            raise ArchiveError(self.path, reason, name)
        if len(start) < header_length:
            start = self.content.read_at(entry.offset, header_length)
        if len(start) == length:
            descriptor = start[after:]
        else:
            descriptor = self.content.read_at(entry.offset + after, length - after)
        problem = find_header_problem(entry, start[:header_length], descriptor)
        if problem is not None:
            raise ArchiveError(self.path, problem, name)
        if self._must_be_canonical:
            self._reject_repacked(_OTHER_HEADER, name)
        # Not yet an error: the manifest, which decides whether it is, is itself read as a record.
        self._noncanonical_record = name
        return header_length

    def _inflate(self, name: str, entry: ZipEntry, pieces: Iterable[bytes]) -> Iterator[bytes]:
        # Inflate at most one byte more than the stated size, which detects zip bombs.
        inflater, left = zlib.decompressobj(RAW_DEFLATE), entry.size
        try:
            for piece in pieces:
                pending = piece
                while left >= 0:
                    wanted = min(left + 1, CHUNK_BYTES)
                    chunk = inflater.decompress(pending, wanted)
                    left -= len(chunk)
                    yield chunk
                    pending = inflater.unconsumed_tail
                    if not pending and len(chunk) < wanted:
                        break
        except zlib.error as error:
            raise ArchiveError(
                self.path, f"the record cannot be inflated: {error}", name
            ) from error
        # Bytes after the stream would be ignored by readers, and no digest of the content covers
        # them.
        if left or not inflater.eof or inflater.unused_data:
            reason = "the record does not inflate to its stated size"
            raise ArchiveError(self.path, reason, name)

    def _check_crc(self, name: str, entry: ZipEntry, crc: int) -> None:
        if crc != entry.crc:
            reason = "the content is damaged: the CRC-32 does not match"
            raise ArchiveError(self.path, reason, name)


def open_archive(
    source: str | os.PathLike[str] | BinaryIO,
    *,
    label: str | None = None,
) -> Archive:
    """Open a package for reading, without executing or unpickling its contents.

    Args:
        source: One of four kinds. The path of a zip archive. The path of an unzipped package:
            the folder with ``.data``, or a folder that contains only that folder. A URL, of which
            only ranges are read. A binary buffer, which is read at once from its current position
            to its end and can be closed afterwards.
        label: The name of a path in messages, by default the path.

    Raises:
        TypeError: If ``source`` has another type.
        NotAPackageError: If the file does not exist or is not a package.
        ArchiveError: If the archive is damaged, ambiguous, unsafe, or too large.

    >>> import io
    >>> from modpack.writing.writer import ArchiveWriter
    >>> buffer = io.BytesIO()
    >>> with ArchiveWriter(buffer) as writer:
    ...     writer.write(".data/version", b"6")
    ...     writer.write("pkg/greeting.txt", b"hello")
    ...     _ = writer.commit()
    >>> _ = buffer.seek(0)
    >>> with open_archive(buffer) as archive:
    ...     archive.read("pkg/greeting.txt")
    b'hello'
    """
    if not isinstance(source, (str, os.PathLike)):
        return _open_content(BufferBytes(_read_buffer(source)))
    path = os.fspath(source)
    if not isinstance(path, str):
        raise TypeError("source must be a str path, not a bytes path")
    url = url_of(path)
    if url is not None:
        return _complete(services.installed.open_remote(url))
    if os.path.isdir(path):
        from modpack.archive.folder_reader import FolderArchive  # rarely needed

        return _complete(FolderArchive(path))
    return _open_content(FileBytes(path, label or path))


def opened(source: str | os.PathLike[str] | BinaryIO | Archive) -> AbstractContextManager[Archive]:
    """Return a context with an open package, which closes what it has opened.

    Args:
        source: A source of :func:`open_archive`, or an open package, which stays open.

    Raises:
        ArchiveError: As :func:`open_archive`.
    """
    return nullcontext(source) if isinstance(source, Archive) else open_archive(source)


def local_source(source: Source) -> Source | str:
    """Return a source of :func:`open_archive`; a file in the cache instead of a URL.

    Raises:
        ArchiveError: If the package cannot be downloaded, or is damaged.
        CacheError: If the cache cannot be used.
    """
    path = str(source) if isinstance(source, (str, os.PathLike)) else ""
    url = url_of(path)
    return source if url is None else services.installed.downloaded(url)


def _complete(archive: Archive) -> Archive:
    """Reject torch's other zip formats, which also have a version record, and add the shards."""
    if not (archive.has(layout.EXTERN_MODULES) or archive.has(layout.MANIFEST)):
        from modpack.archive.other_files import identify_zip

        other = identify_zip(archive.path, archive.has)
        if other is not None:
            archive.close()
            raise other
    if archive.has(layout.SHARDS):
        from modpack.archive.sharded import ShardedArchive  # most packages have none

        return ShardedArchive(archive)
    return archive


def _open_content(content: FileBytes | BufferBytes) -> Archive:
    try:
        return _complete(ZipArchive(content))
    except BaseException:
        content.close()
        raise


def _read_buffer(source: BinaryIO) -> bytes | bytearray | memoryview:
    read = getattr(source, "read", None)
    if not callable(read):
        raise TypeError(
            f"source must be a path or a binary buffer with read(), not {type(source).__name__}"
        )
    try:
        content = read()
    except (OSError, ValueError) as error:  # ValueError: the buffer is closed
        raise ArchiveError("<buffer>", f"the buffer cannot be read: {error}") from error
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise TypeError("source must be a binary buffer, not a text one. Open it with mode 'rb'.")
    if not content:
        reason = "the buffer is empty from its current position on"
        raise NotAPackageError("<buffer>", reason, hint="Call buffer.seek(0) first.")
    return content
