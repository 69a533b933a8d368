"""Writer for packages, record by record. A failed write leaves the target unchanged.

Threads compute checksums and deflate while the caller continues. Small records are copied and
batched. Large records are written at once and hashed from the file, or, if huge, from a copy of
each chunk. Checksums always match the written bytes, even if training changes a tensor meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, TypeAlias

from modpack.archive import layout
from modpack.archive.base import RecordDigest
from modpack.archive.layout import NameRegistry, check_record_name
from modpack.archive.manifest import encode_manifest
from modpack.archive.zip_format import (
    CRC_IN_LOCAL,
    DEFLATED,
    MAX16,
    RAW_DEFLATE,
    STORED,
    ZipEntry,
    canonical_kind,
    central_header,
    end_records,
    local_header,
)
from modpack.core.process import ThreadPool, gc_paused
from modpack.errors import ArchiveError
from modpack.writing.target import CHUNK_BYTES, Sink, open_sink

if TYPE_CHECKING:
    from hashlib import _Hash

_BATCH_BYTES: Final = 1 << 20
"""Minimum batch size. Handing less to a thread costs more than it saves."""
_MAX_PENDING_BYTES: Final = 8 << 20
"""Size of pending records above which the writer waits for them."""
_LARGE_BYTES: Final = 1 << 20
"""Minimum size of records that are written without batching."""
_PIECE_BYTES: Final = 2 << 20
_PIECE_COUNT: Final = 3
"""One piece is being written while the previous one is hashed and the next one is copied."""
_HUGE_BYTES: Final = 64 << 20
"""Minimum size of records that are hashed while they are written. Smaller records are read back,
two at a time, which neither copies them nor blocks the writer (benchmark row save-400)."""
_DEFLATE_LEVEL: Final = 6


_Record: TypeAlias = tuple[str, bytes | memoryview, bool]
"""Name, content, and whether to deflate it."""
_CompressedRecord: TypeAlias = tuple[str, bytes | memoryview, int, str, bytes | None]
"""Name, content, CRC-32, SHA-256, and the deflated content; None if the content is to be stored."""


class _Checksums(NamedTuple):
    """The checksums of a large record up to the end of one piece."""

    crc: Future[int]
    sha256: Future[_Hash]

    def result(self) -> tuple[int, _Hash]:
        return self.crc.result(), self.sha256.result()


def _compress(records: Sequence[_Record]) -> list[_CompressedRecord]:
    return [
        (
            name,
            content,
            zlib.crc32(content),
            hashlib.sha256(content).hexdigest(),
            _deflate(content) if compress else None,
        )
        for name, content, compress in records
    ]


def _deflate(content: bytes | memoryview) -> bytes | None:
    if len(content) > layout.MAX_CODE_RECORD_BYTES:
        return None
    compressor = zlib.compressobj(_DEFLATE_LEVEL, zlib.DEFLATED, RAW_DEFLATE)
    payload = compressor.compress(content) + compressor.flush()
    is_smaller = len(payload) < len(content)
    # A reader would take a record beyond this ratio for a bomb.
    is_allowed = layout.allows_inflating(len(payload), len(content))
    return payload if is_smaller and is_allowed else None


def _digest_written(descriptor: int, offset: int, size: int) -> tuple[int, _Hash]:
    """Compute the checksums of written bytes by reading them back."""
    crc, digest, end = 0, hashlib.sha256(), offset + size
    memory = memoryview(bytearray(min(size, _PIECE_BYTES)))
    while offset < end:
        piece = memory[: os.preadv(descriptor, [memory[: end - offset]], offset)]
        if not piece:
            raise OSError("written data cannot be read back")
        crc = zlib.crc32(piece, crc)
        digest.update(piece)
        offset += len(piece)
    return crc, digest


def _extend_crc(previous: Future[int] | None, piece: memoryview) -> int:
    return zlib.crc32(piece, 0 if previous is None else previous.result())


def _extend_sha256(previous: Future[_Hash] | None, piece: memoryview) -> _Hash:
    # A copy, because the pool may call this function twice, and `update` changes the object.
    digest = hashlib.sha256() if previous is None else previous.result().copy()
    digest.update(piece)
    return digest


class Checkpoint(NamedTuple):
    """A state of a writer, for :meth:`ArchiveWriter.rollback`.

    Attributes:
        records: Number of records.
        position: Bytes written; 0 when only planning.
        inflated: Uncompressed size of the deflated records in bytes.
    """

    records: int
    position: int = 0
    inflated: int = 0


class _ZipBodyWriter:
    """Writes records one after another and collects their directory headers.

    Records may be pending until :meth:`flush`.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._threads = ThreadPool(2)
        self._batch: list[_Record] = []
        self._batch_bytes = 0
        self._pending: deque[tuple[int, Future[list[_CompressedRecord]]]] = deque()
        self._pending_bytes = 0
        self._pieces: deque[tuple[memoryview, _Checksums | None]] = deque()
        self._hashing: dict[str, _Checksums | Future[tuple[int, _Hash]]] = {}
        self._entries: dict[str, ZipEntry] = {}
        self._digests: dict[str, RecordDigest] = {}
        self._position = 0
        self._inflated = 0

    def add(self, name: str, content: bytes | memoryview, *, compress: bool) -> None:
        """Add a record. The caller may change the bytes of a view after the call."""
        self._sink.begin()
        # Pending records are written first: the file has them in the order of the calls.
        if not compress and len(content) >= _LARGE_BYTES:
            self._write_pending()
            self._write_large(name, memoryview(content))
            return
        self._batch.append((name, bytes(content), compress))
        self._batch_bytes += len(content)
        if self._batch_bytes >= _BATCH_BYTES:
            self._pending.append((self._batch_bytes, self._threads.run(_compress, self._batch)))
            self._pending_bytes += self._batch_bytes
            self._batch, self._batch_bytes = [], 0
        while self._pending_bytes > _MAX_PENDING_BYTES:
            self._write_oldest_batch()

    def flush(self) -> None:
        """Write all pending records and fill in all checksums."""
        self._write_pending()
        for name, checksums in self._hashing.items():
            with self._sink.reporting():
                crc, sha256 = checksums.result()
            entry = self._entries[name]._replace(crc=crc)
            # The header was written before the content was read, and the checksum is part of it.
            self._sink.patch(entry.offset + CRC_IN_LOCAL, entry.crc.to_bytes(4, "little"))
            self._entries[name] = entry
            self._digests[name] = RecordDigest(entry.size, sha256.hexdigest())
        self._hashing.clear()

    def digests(self) -> dict[str, RecordDigest]:
        """Return the manifest entries of all records, in file order."""
        self.flush()
        return self._digests

    def digest(self, name: str) -> RecordDigest:
        """Return the manifest entry of a record."""
        if name not in self._digests or name in self._hashing:
            self.flush()
        return self._digests[name]

    def checkpoint(self) -> Checkpoint:
        """Return the current state."""
        self.flush()
        return Checkpoint(len(self._entries), self._position, self._inflated)

    def truncate(self, checkpoint: Checkpoint) -> None:
        """Remove all records after a checkpoint."""
        self.flush()
        for name in list(self._entries)[checkpoint.records :]:
            del self._entries[name], self._digests[name]
        if self._position > checkpoint.position:
            self._sink.truncate(checkpoint.position)
        _, self._position, self._inflated = checkpoint

    def write_directory(self) -> None:
        """Write the zip's directory and end records."""
        self.flush()
        lines = [central_header(entry) for entry in self._entries.values()]
        directory = b"".join(lines)
        self._sink.write(directory, end_records(len(lines), len(directory), self._position))

    def stored_chunks(self, name: str) -> Iterator[bytes] | None:
        """Return the content of an uncompressed record, or None for any other."""
        self.flush()
        entry = self._entries.get(name)
        if entry is None or entry.kind > MAX16:
            return None
        return self._chunks(entry.offset + len(_header(name, entry)), entry.size)

    def close(self) -> None:
        """Stop the threads."""
        self._batch.clear()
        self._pending.clear()
        self._threads.close()

    def _chunks(self, offset: int, remaining: int) -> Iterator[bytes]:
        with open(self._sink.path(), "rb") as file:
            file.seek(offset)
            while remaining and (chunk := file.read(min(remaining, CHUNK_BYTES))):
                remaining -= len(chunk)
                yield chunk

    def _write_pending(self) -> None:
        while self._pending:
            self._write_oldest_batch()
        # The last batch is small: starting a thread for it costs more than it saves.
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        self._write_records(_compress(batch))

    def _write_oldest_batch(self) -> None:
        size, records = self._pending.popleft()
        self._pending_bytes -= size
        self._write_records(records.result())

    def _write_records(self, records: Sequence[_CompressedRecord]) -> None:
        pieces: list[bytes | memoryview] = []
        for name, content, crc, sha256, deflated in records:
            size, payload, method, deflated_sha256 = len(content), content, STORED, ""
            inflated = self._inflated + size
            # The archive only grows, so what its size allows now is still allowed in the end.
            if deflated is not None and layout.allows_total(self._position, inflated):
                payload, method = deflated, DEFLATED
                deflated_sha256 = hashlib.sha256(deflated).hexdigest()
                self._inflated = inflated
            pieces += self._add_entry(name, size, len(payload), crc, method), payload
            self._digests[name] = RecordDigest(size, sha256, deflated_sha256)
        self._sink.write(*pieces)

    def _write_large(self, name: str, content: memoryview) -> None:
        """Write a record before its checksums are known. :meth:`flush` fills them in."""
        size = len(content)
        header = self._add_entry(name, size, size)
        self._digests[name] = RecordDigest(size, "")
        descriptor = self._sink.write_readable(header, content) if size < _HUGE_BYTES else None
        if descriptor is not None:
            offset = self._position - size
            self._hashing[name] = self._threads.run(_digest_written, descriptor, offset, size)
            return
        self._sink.write(header)
        if not self._pieces:
            memories = [memoryview(bytearray(_PIECE_BYTES)) for _ in range(_PIECE_COUNT)]
            self._pieces.extend((memory, None) for memory in memories)
        crc, sha256 = None, None
        for start in range(0, size, _PIECE_BYTES):
            memory, readers = self._pieces.popleft()
            # The memory is free once both threads have read the piece that it held.
            for reader in readers or ():
                reader.result()
            piece = content[start : start + _PIECE_BYTES]
            copy = memory[: len(piece)]
            copy[:] = piece
            crc = self._threads.run(_extend_crc, crc, copy)
            sha256 = self._threads.run(_extend_sha256, sha256, copy)
            checksums = self._hashing[name] = _Checksums(crc, sha256)
            self._pieces.append((memory, checksums))
            self._sink.write(copy)

    def _add_entry(
        self, name: str, size: int, compressed: int, crc: int = 0, method: int = STORED
    ) -> bytes:
        """Add a directory entry for a record at the current position; return its header."""
        raw_name = layout.zip_name(name).encode()
        kind = canonical_kind(raw_name, method)
        entry = ZipEntry(raw_name, kind, crc, compressed, size, self._position)
        header = _header(name, entry)
        self._entries[name] = entry
        self._position += len(header) + compressed
        return header


def _header(name: str, entry: ZipEntry) -> bytes:
    return local_header(entry, align=layout.is_storage(name))


_PLANNED: Final = ""
"""The digest when only planning."""
_FAILED: Final = "a write failed"


class ArchiveWriter:
    """Writes the records of one package, in the order of the calls.

    The output is reproducible: the same calls write the same bytes. The target does not change
    before :meth:`commit`. Leaving the ``with`` block without a commit discards everything.

    Args:
        target: A path, or a binary buffer with ``write``, which need not be seekable. None plans
            only: names are checked, nothing is written, and all digests are empty.

    Attributes:
        path: The target as the user named it; ``<buffer>`` or ``<plan>`` if it is not a path.

    Raises:
        TypeError: If ``target`` has another type.
        TargetError: If the target cannot be written, for example in a missing folder.

    >>> import io
    >>> from modpack.archive import layout
    >>> with ArchiveWriter(io.BytesIO()) as writer:
    ...     writer.write(layout.VERSION, layout.VERSION_CONTENT)
    ...     writer.write("pkg/greeting.txt", b"hello")
    ...     digest = writer.commit()
    >>> len(digest)
    64
    """

    def __init__(self, target: str | os.PathLike[str] | BinaryIO | None) -> None:
        self._sink: Sink | None = None if target is None else open_sink(target)
        self.path: str = "<plan>" if self._sink is None else self._sink.label
        self._registry = NameRegistry()
        self._names: dict[str, None] = {}
        self._declared: dict[str, RecordDigest] = {}
        self._body = None if self._sink is None else _ZipBodyWriter(self._sink)
        self._closed_because: str | None = None

    def __enter__(self) -> ArchiveWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.discard()

    def __del__(self) -> None:
        # The constructor may have raised before it set the attribute.
        if hasattr(self, "_closed_because"):
            self.discard()

    def write(
        self, name: str, data: bytes | bytearray | memoryview, *, compress: bool = False
    ) -> None:
        """Add a record.

        Args:
            name: Name relative to the top-level folder, with ``/`` between components.
            data: The content. It must be contiguous and must not change during the call.
            compress: Whether to deflate the content if that makes it smaller.

        Raises:
            TypeError: If ``name`` is not a str, or ``data`` is not contiguous bytes.
            ArchiveError: If the name is unsafe or already used, or the writer is closed.
            TargetError: If the target cannot be written. The writer is then closed.
        """
        self._reject_reserved(name)
        self._add(name, data, compress=compress and not layout.is_storage(name))

    def write_storage(self, name: str, data: memoryview) -> None:
        """Add a record that can be memory-mapped: uncompressed and 64-byte aligned in the file.

        Args:
            name: Name relative to the top-level folder, from ``layout.storage_name``.
            data: The bytes of a tensor storage: contiguous, in any format or shape.

        Raises:
            TypeError: If ``name`` is not a str, or ``data`` is not contiguous bytes.
            ArchiveError: If the name is not a storage name or is already used, or the writer is
                closed.
            TargetError: If the target cannot be written. The writer is then closed.
        """
        self._reject_reserved(name)
        if not layout.is_storage(name):
            raise ArchiveError(self.path, "this is not a storage name", name)
        self._add(name, data, compress=False)

    def declare(self, name: str, digest: RecordDigest) -> None:
        """List a record in the manifest whose bytes are in another file.

        Raises:
            ArchiveError: If the name is not a storage name or is already used, or the writer is
                closed.
        """
        if not layout.is_storage(name):
            raise ArchiveError(self.path, "this is not a storage name", name)
        self._register_name(name)
        self._declared[name] = digest

    @gc_paused()
    def commit(self) -> str:
        """Complete the archive and replace the target with it.

        Returns:
            The package digest: the SHA-256 of the manifest, in hex. Empty when only planning.

        Raises:
            ArchiveError: If the writer is closed.
            TargetError: If the target cannot be written. A file is then unchanged; a buffer may
                have received part of the archive.
        """
        self._require_open()
        if self._sink is None or self._body is None:
            self._close("the archive was committed")
            return _PLANNED
        digest = self._complete(self._body)
        with self._closing_on_failure():
            self._sink.publish()
        self._close("the archive was committed")
        return digest

    def checkpoint(self) -> Checkpoint:
        """Return the current state, for :meth:`rollback`."""
        self._require_open()
        if self._body is None:
            return Checkpoint(len(self._names))
        with self._closing_on_failure():
            return self._body.checkpoint()

    def rollback(self, checkpoint: Checkpoint) -> None:
        """Remove the records that were written after a checkpoint.

        Raises:
            ArchiveError: If the writer is closed.
            TargetError: If the target cannot be written. The writer is then closed.
        """
        self._require_open()
        for name in list(self._names)[checkpoint.records :]:
            del self._names[name]
        self._registry.truncate(checkpoint.records)
        if self._body is not None:
            with self._closing_on_failure():
                self._body.truncate(checkpoint)

    @contextlib.contextmanager
    def open_preview(self) -> Iterator[str]:
        """Complete the archive in a temporary file, and undo that at the end of the block.

        No record can be written within the block.

        Returns:
            A context manager for the path of the temporary file.

        Raises:
            ArchiveError: If the writer is closed, or only plans.
            TargetError: If the target cannot be written. The writer is then closed.
        """
        if self._sink is None or self._body is None:
            raise ArchiveError(self.path, "a writer that only plans has no preview")
        before = self.checkpoint()
        self._complete(self._body)
        try:
            yield self._sink.path()
        finally:
            self.rollback(before)

    def stored_chunks(self, name: str) -> Iterator[bytes]:
        """Read back the content of an uncompressed record in chunks.

        Raises:
            ArchiveError: If the record does not exist or is compressed.
            OSError: If the temporary file cannot be read.
        """
        chunks = None
        if self._body is not None:
            with self._closing_on_failure():
                chunks = self._body.stored_chunks(name)
        if chunks is None:
            raise ArchiveError(self.path, "no uncompressed record has this name", name)
        return chunks

    def discard(self) -> None:
        """Discard all records and leave the target unchanged. No-op after a commit."""
        self._close("the archive was discarded")

    def has(self, name: str) -> bool:
        """Return whether a record with exactly this name was written."""
        return name in self._names

    def names(self) -> tuple[str, ...]:
        """Return the record names in the order of writing."""
        return tuple(self._names)

    def digest_of(self, name: str) -> str:
        """Return the SHA-256 of a record's content, in hex. Empty when only planning.

        Raises:
            ArchiveError: If the record does not exist.
        """
        if name not in self._names:
            raise ArchiveError(self.path, "no such record was written", name)
        if self._body is None:
            return _PLANNED
        with self._closing_on_failure():
            return self._body.digest(name).sha256

    def digests(self) -> Mapping[str, RecordDigest]:
        """Return the size and SHA-256 of all records. Empty when only planning."""
        if self._body is None:
            return {}
        with self._closing_on_failure():
            return dict(self._body.digests())

    def _add(self, name: str, data: bytes | bytearray | memoryview, *, compress: bool) -> None:
        content = data if type(data) is bytes else _as_bytes(data)
        self._register_name(name)
        self._names[name] = None
        if self._body is not None:
            with self._closing_on_failure():
                self._body.add(name, content, compress=compress)

    def _complete(self, body: _ZipBodyWriter) -> str:
        """Write the manifest and the zip directory; return the package digest."""
        self._require_open()
        with self._closing_on_failure():
            manifest = encode_manifest({**self._declared, **body.digests()})
        digest = hashlib.sha256(manifest).hexdigest()
        # The last records, because the manifest lists all others.
        self._add(layout.MANIFEST, manifest, compress=False)
        self._add(layout.MANIFEST_DIGEST, digest.encode("ascii"), compress=False)
        with self._closing_on_failure():
            body.write_directory()
        return digest

    def _reject_reserved(self, name: str) -> None:
        if name in (layout.MANIFEST, layout.MANIFEST_DIGEST):
            raise ArchiveError(self.path, "the name is reserved; commit() writes the record", name)
        if name == layout.SIGNATURE:
            raise ArchiveError(self.path, "the name is reserved for signatures", name)

    def _register_name(self, name: str) -> None:
        self._require_open()
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, not {type(name).__name__}")
        reason = check_record_name(name) or self._check_length(name) or self._registry.add(name)
        if reason is not None:
            raise ArchiveError(self.path, reason, name)

    def _check_length(self, name: str) -> str | None:
        full, limit = layout.zip_name(name), layout.MAX_NAME_BYTES
        # A character has at most four bytes, so most names need not be encoded.
        if len(full) * 4 > limit < len(full.encode()):
            return f"the name is longer than {limit} bytes"
        return None

    def _require_open(self) -> None:
        if self._closed_because is not None:
            raise ArchiveError(self.path, f"the writer is closed: {self._closed_because}")
        self._require_own_process()

    def _require_own_process(self) -> None:
        # A forked child shares the file position with its parent.
        if self._sink is not None and self._sink.is_inherited:
            reason = "a forked child cannot continue writing; only the parent process can"
            raise ArchiveError(self.path, reason)

    @contextlib.contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        # A partially written record cannot be removed.
        self._require_own_process()
        try:
            yield
        except BaseException:
            self._close(_FAILED)
            raise

    def _close(self, reason: str) -> None:
        if self._closed_because is not None:
            return
        self._closed_because = reason
        if self._body is not None:
            self._body.close()
        if self._sink is not None:
            self._sink.discard()


def _as_bytes(data: bytes | bytearray | memoryview) -> memoryview:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"data must be bytes, a bytearray, or a memoryview, not {type(data).__name__}"
        )
    view = memoryview(data)
    if not view.c_contiguous:
        raise TypeError("data must be contiguous")
    return view.cast("B") if view.nbytes else memoryview(b"")
