"""Writing a package, record by record, so that a failure leaves no trace.

Threads compute checksums and deflate while the caller goes on. A small record is copied and waits
with others until they are worth a thread. A large one is written at once, and hashed from the file
or, if it is huge, from a copy of each piece: the checksums are of the bytes that were written, even
of memory that another thread changes meanwhile, as training does.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from modpack.archive import layout
from modpack.archive.base import RecordDigest
from modpack.archive.layout import DEFAULT_LIMITS, NameRegistry, check_record_name
from modpack.archive.manifest import encode_manifest
from modpack.archive.target import CHUNK_BYTES, Sink, open_sink
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

if TYPE_CHECKING:
    from hashlib import _Hash

    from modpack.archive.hash_helper import HashHelper, Slot

_BATCH_BYTES: Final = 1 << 20
"""Bytes of records from which handing them to a thread costs less than it saves."""
_MAX_WAITING: Final = 8 << 20
"""Bytes of records that wait before the writer does."""
_LARGE: Final = 1 << 20
"""Bytes from which a record does not wait."""
_WORTH_HELPING: Final = 4 << 10
"""Bytes of a record from which a helper process saves more than handing it over costs."""
_WORTH_A_HELPER: Final = 32 << 20
"""Bytes of such records from which starting one is worth it."""
_PIECE_BYTES: Final = 2 << 20
_MAX_PIECES: Final = 3
"""One piece is written while the one before is hashed, and the next one copied."""
_HUGE: Final = 64 << 20
"""Bytes from which a record is hashed while it is written. Smaller ones are read back instead, two
at a time, which neither copies them nor lets the writer wait (benchmark row save-400)."""
_DEFLATE_LEVEL: Final = 6


class _Record(NamedTuple):
    name: str
    content: bytes | memoryview
    compress: bool


class _Prepared(NamedTuple):
    """A record that can be written; ``deflated`` is None if it had better be stored."""

    name: str
    content: bytes | memoryview
    crc: int
    sha256: str
    deflated: bytes | None


class _Checksums(NamedTuple):
    """Those of a large record up to the end of a piece."""

    crc: Future[int]
    sha256: Future[_Hash]

    def result(self) -> tuple[int, _Hash]:
        return self.crc.result(), self.sha256.result()


def _prepare(records: Sequence[_Record]) -> list[_Prepared]:
    return [
        _Prepared(
            name,
            content,
            zlib.crc32(content),
            hashlib.sha256(content).hexdigest(),
            _deflate(content) if compress else None,
        )
        for name, content, compress in records
    ]


def _hashed(helper: HashHelper, slot: Slot, records: Sequence[_Record]) -> list[_Prepared]:
    digests = zip(records, helper.digests(slot), strict=True)
    return [
        _Prepared(name, content, crc, sha256.hex(), None)
        for (name, content, _), (crc, sha256) in digests
    ]


def _deflate(content: bytes | memoryview) -> bytes | None:
    if len(content) > DEFAULT_LIMITS.max_code_record_bytes:
        return None
    compressor = zlib.compressobj(_DEFLATE_LEVEL, zlib.DEFLATED, RAW_DEFLATE)
    payload = compressor.compress(content) + compressor.flush()
    helps = len(payload) < len(content)
    readable = DEFAULT_LIMITS.allows_inflating(len(payload), len(content))
    return payload if helps and readable else None


def _digest_written(descriptor: int, offset: int, size: int) -> tuple[int, _Hash]:
    """Compute the checksums of what was written to a file."""
    crc, digest, end = 0, hashlib.sha256(), offset + size
    memory = memoryview(bytearray(min(size, _PIECE_BYTES)))
    while offset < end:
        piece = memory[: os.preadv(descriptor, [memory[: end - offset]], offset)]
        if not piece:
            raise OSError("what was written cannot be read back")
        crc = zlib.crc32(piece, crc)
        digest.update(piece)
        offset += len(piece)
    return crc, digest


def _crc_on(before: Future[int] | None, piece: memoryview) -> int:
    return zlib.crc32(piece, 0 if before is None else before.result())


def _sha256_on(before: Future[_Hash] | None, piece: memoryview) -> _Hash:
    digest = hashlib.sha256() if before is None else before.result().copy()
    digest.update(piece)
    return digest


class Checkpoint(NamedTuple):
    """How far a writer had come: what :meth:`ArchiveWriter.rollback` goes back to.

    Attributes:
        records: how many records there were.
        position: bytes that they take; 0 when only planning.
        inflated: bytes of the deflated ones among them once inflated.
    """

    records: int
    position: int = 0
    inflated: int = 0


class _Body:
    """Lays records one after the other, and remembers what the zip's directory says of them.

    A record is in the sink at the latest after :meth:`settle`.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._threads = ThreadPool(2)
        self._batch: list[_Record] = []
        self._batch_bytes = 0
        self._slot: Slot | None = None
        self._preparing: deque[tuple[int, Callable[[], list[_Prepared]], Slot | None]] = deque()
        self._preparing_bytes = 0
        self._helper: HashHelper | None = None
        self._for_helper = 0
        self._pieces: deque[tuple[memoryview, _Checksums | None]] = deque()
        self._hashing: dict[str, _Checksums | Future[tuple[int, _Hash]]] = {}
        self._entries: dict[str, ZipEntry] = {}
        self._digests: dict[str, RecordDigest] = {}
        self._position = 0
        self._inflated = 0

    def add(self, name: str, content: bytes | memoryview, *, compress: bool) -> None:
        """Add a record; the bytes of a view may change as soon as the call returns."""
        self._sink.begin()
        if not compress and len(content) >= _LARGE:
            self._lay_waiting()
            self._lay_large(name, memoryview(content))
            return
        copy = None
        if not compress and (self._slot is not None or len(content) >= _WORTH_HELPING):
            copy = self._shared_copy(content)
        elif self._slot is not None:
            self._begin_batch()
        self._batch.append(_Record(name, bytes(content) if copy is None else copy, compress))
        self._batch_bytes += len(content)
        if self._slot is None and self._batch_bytes >= _BATCH_BYTES:
            self._begin_batch()
        while self._preparing_bytes > _MAX_WAITING:
            self._lay_first()

    def settle(self) -> None:
        """Lay what still waits, and fill in all checksums."""
        self._lay_waiting()
        for name, checksums in self._hashing.items():
            with self._sink.reporting():
                crc, sha256 = checksums.result()
            entry = self._entries[name]._replace(crc=crc)
            self._sink.patch(entry.offset + CRC_IN_LOCAL, entry.crc.to_bytes(4, "little"))
            self._entries[name] = entry
            self._digests[name] = RecordDigest(entry.size, sha256.hexdigest())
        self._hashing.clear()

    def digests(self) -> dict[str, RecordDigest]:
        """Return what the manifest says of each record, in their order."""
        self.settle()
        return self._digests

    def digest(self, name: str) -> RecordDigest:
        """Return what the manifest says of a record."""
        if name not in self._digests or name in self._hashing:
            self.settle()
        return self._digests[name]

    def checkpoint(self) -> Checkpoint:
        """Return how far it reaches."""
        self.settle()
        return Checkpoint(len(self._entries), self._position, self._inflated)

    def cut(self, to: Checkpoint) -> None:
        """Forget what reaches farther."""
        self.settle()
        for name in list(self._entries)[to.records :]:
            del self._entries[name], self._digests[name]
        if self._position > to.position:
            self._sink.truncate(to.position)
        _, self._position, self._inflated = to

    def end(self) -> None:
        """Write the zip's directory."""
        self.settle()
        lines = [central_header(entry) for entry in self._entries.values()]
        directory = b"".join(lines)
        self._sink.write(directory, end_records(len(lines), len(directory), self._position))

    def stored_chunks(self, name: str) -> Iterator[bytes] | None:
        """Return the content of a record that was stored as it is; None for any other."""
        self.settle()
        entry = self._entries.get(name)
        if entry is None or entry.kind > MAX16:
            return None
        return self._chunks(entry.offset + len(_header(name, entry)), entry.size)

    def close(self) -> None:
        """End the threads."""
        self._batch.clear()
        self._preparing.clear()
        self._threads.close()
        if self._helper is not None:
            self._helper.close()

    def _chunks(self, offset: int, remaining: int) -> Iterator[bytes]:
        with open(self._sink.path(), "rb") as file:
            file.seek(offset)
            while remaining and (chunk := file.read(min(remaining, CHUNK_BYTES))):
                remaining -= len(chunk)
                yield chunk

    def _shared_copy(self, content: bytes | memoryview) -> memoryview | None:
        """Copy a record to where the helper sees it; None if there is no helper or no room."""
        self._for_helper += len(content)
        if self._helper is None:
            if self._for_helper < _WORTH_A_HELPER:
                return None
            from modpack.archive.hash_helper import start_hash_helper  # few saves need it

            self._helper, self._for_helper = start_hash_helper(), 0
            if self._helper is None:
                return None
        copy = None if self._slot is None else self._slot.add(content)
        if copy is None:
            self._begin_batch()
            self._slot = self._helper.slot()
            copy = None if self._slot is None else self._slot.add(content)
        return copy

    def _begin_batch(self) -> None:
        """Have the helper or a thread prepare what is gathered."""
        batch, size, slot = self._batch, self._batch_bytes, self._slot
        self._batch, self._batch_bytes, self._slot = [], 0, None
        if not batch:
            return
        if slot is None or self._helper is None:
            prepared = self._threads.run(_prepare, batch).result
        else:
            prepared = partial(_hashed, self._helper, slot, batch)
            self._helper.begin(slot)
        self._preparing.append((size, prepared, slot))
        self._preparing_bytes += size

    def _lay_waiting(self) -> None:
        if self._slot is not None:
            self._begin_batch()
        while self._preparing:
            self._lay_first()
        # A few small ones are prepared here: for those, threads are not worth being started.
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        self._lay_all(_prepare(batch))

    def _lay_first(self) -> None:
        size, prepared, slot = self._preparing.popleft()
        self._preparing_bytes -= size
        self._lay_all(prepared())
        if self._helper is not None and slot is not None:
            self._helper.take_back(slot)

    def _lay_all(self, records: Sequence[_Prepared]) -> None:
        pieces: list[bytes | memoryview] = []
        for name, content, crc, sha256, deflated in records:
            size, payload, method, of_deflated = len(content), content, STORED, ""
            inflated = self._inflated + size
            if deflated is not None and DEFAULT_LIMITS.allows_total(self._position, inflated):
                payload, method = deflated, DEFLATED
                of_deflated = hashlib.sha256(deflated).hexdigest()
                self._inflated = inflated
            pieces += self._begin_entry(name, size, len(payload), crc, method), payload
            self._digests[name] = RecordDigest(size, sha256, of_deflated)
        self._sink.write(*pieces)

    def _lay_large(self, name: str, content: memoryview) -> None:
        """Lay a record before its checksums are known, which are filled in later."""
        size = len(content)
        header = self._begin_entry(name, size, size)
        self._digests[name] = RecordDigest(size, "")
        readable = self._sink.write_readable(header, content) if size < _HUGE else None
        if readable is not None:
            place = readable, self._position - size, size
            self._hashing[name] = self._threads.run(_digest_written, *place)
            return
        self._sink.write(header)
        if not self._pieces:
            memories = [memoryview(bytearray(_PIECE_BYTES)) for _ in range(_MAX_PIECES)]
            self._pieces.extend((memory, None) for memory in memories)
        crc, sha256 = None, None
        for start in range(0, size, _PIECE_BYTES):
            memory, readers = self._pieces.popleft()
            for reader in readers or ():
                reader.result()
            piece = content[start : start + _PIECE_BYTES]
            copy = memory[: len(piece)]
            copy[:] = piece
            crc = self._threads.run(_crc_on, crc, copy)
            sha256 = self._threads.run(_sha256_on, sha256, copy)
            checksums = self._hashing[name] = _Checksums(crc, sha256)
            self._pieces.append((memory, checksums))
            self._sink.write(copy)

    def _begin_entry(
        self, name: str, size: int, compressed: int, crc: int = 0, method: int = STORED
    ) -> bytes:
        """Note a record at the current position; return its header."""
        raw_name = f"{layout.ROOT}/{name}".encode()
        kind = canonical_kind(raw_name, method)
        entry = ZipEntry(raw_name, kind, crc, compressed, size, self._position)
        header = _header(name, entry)
        self._entries[name] = entry
        self._position += len(header) + compressed
        return header


def _header(name: str, entry: ZipEntry) -> bytes:
    return local_header(entry, align=layout.is_storage(name))


_PLANNED: Final = ""
"""The digest of what is not written."""
_FAILED: Final = "writing to it failed"


class ArchiveWriter:
    """Writes the records of one package, in the order of the calls.

    The same calls give the same bytes. Nothing is to be seen at the target before
    :meth:`commit`; leaving the ``with`` block without it, or by an exception, discards.

    Args:
        target: a path, or a binary buffer with ``write`` (it need not be seekable). None plans
            only: names are checked, nothing is written, and all digests are empty.

    Raises:
        TypeError: ``target`` is none of these.
        TargetError: the target cannot be written (a missing folder, a directory, ...).

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
        self._body = None if self._sink is None else _Body(self._sink)
        self._closed_because: str | None = None

    def __enter__(self) -> ArchiveWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.discard()

    def __del__(self) -> None:
        if hasattr(self, "_closed_because"):
            self.discard()

    def write(
        self, name: str, data: bytes | bytearray | memoryview, *, compress: bool = False
    ) -> None:
        """Adds a record.

        Args:
            name: relative to the top-level folder, components separated by "/".
            data: the content; contiguous, and not changed before the call returns.
            compress: deflate the content if that makes it smaller.

        Raises:
            TypeError: ``name`` is no str, or ``data`` no contiguous bytes.
            ArchiveError: the name is unsafe or taken, or the writer was closed.
            TargetError: the target cannot be written; the writer is then closed.
        """
        self._refuse_reserved(name)
        self._add(name, data, compress=compress and not layout.is_storage(name))

    def write_storage(self, name: str, data: memoryview) -> None:
        """Adds a record that can be mapped: as it is, 64-byte aligned within the file.

        Args:
            name: relative to the top-level folder, from ``layout.storage_name``.
            data: the bytes of a tensor storage, contiguous, in any format or shape.

        Raises:
            TypeError: ``name`` is no str, or ``data`` no contiguous bytes.
            ArchiveError: the name is unsafe, taken, or no storage's, or the writer was closed.
            TargetError: the target cannot be written; the writer is then closed.
        """
        self._refuse_reserved(name)
        if not layout.is_storage(name):
            raise ArchiveError(self.path, "it is not called as a storage must be", name)
        self._add(name, data, compress=False)

    @gc_paused()
    def commit(self) -> str:
        """Completes the archive and puts it in the target's place.

        Returns:
            The package digest: the sha256 of the manifest, in hex. Empty when only planning.

        Raises:
            ArchiveError: the writer was closed.
            TargetError: the target cannot be written. A file is then as it was; a buffer may
                have taken some bytes if it was the buffer that failed.
        """
        self._require_open()
        if self._sink is None or self._body is None:
            self._close("it was committed")
            return _PLANNED
        digest = self._complete(self._body)
        with self._closing_on_failure():
            self._sink.publish()
        self._close("it was committed")
        return digest

    def checkpoint(self) -> Checkpoint:
        """How far the archive has come by now."""
        self._require_open()
        if self._body is None:
            return Checkpoint(len(self._names))
        with self._closing_on_failure():
            return self._body.checkpoint()

    def rollback(self, to: Checkpoint) -> None:
        """Forgets the records that were written since a checkpoint; those before it stay.

        Raises:
            ArchiveError: the writer was closed.
            TargetError: the target cannot be written; the writer is then closed.
        """
        self._require_open()
        for name in list(self._names)[to.records :]:
            del self._names[name]
        self._registry.forget_after(to.records)
        if self._body is not None:
            with self._closing_on_failure():
                self._body.cut(to)

    @contextlib.contextmanager
    def open_preview(self) -> Iterator[str]:
        """The complete archive in a temporary file, as it would be if it ended here.

        Within the block nothing can be written; after it, writing goes on.

        Returns:
            A context manager for the file's path.

        Raises:
            ArchiveError: the writer was closed, or only plans.
            TargetError: the target cannot be written; the writer is then closed.
        """
        if self._sink is None or self._body is None:
            raise ArchiveError(self.path, "nothing is written: there is nothing to preview")
        before = self.checkpoint()
        self._complete(self._body)
        try:
            yield self._sink.path()
        finally:
            self.rollback(before)

    def stored_chunks(self, name: str) -> Iterator[bytes]:
        """Reads back the content of a record that was stored as it is, chunk by chunk.

        Raises:
            ArchiveError: there is no such record, or it was compressed.
            OSError: what was written cannot be read.
        """
        chunks = None
        if self._body is not None:
            with self._closing_on_failure():
                chunks = self._body.stored_chunks(name)
        if chunks is None:
            raise ArchiveError(self.path, "it was not stored as it is", name)
        return chunks

    def discard(self) -> None:
        """Forgets everything written; the target stays as it was. Harmless after a commit."""
        self._close("it was discarded")

    def has(self, name: str) -> bool:
        """Whether a record of this very name was written."""
        return name in self._names

    def names(self) -> tuple[str, ...]:
        """The records' names, in the order they were written."""
        return tuple(self._names)

    def digest_of(self, name: str) -> str:
        """The sha256 of a written record's content, in hex; empty when only planning.

        Raises:
            ArchiveError: there is no such record.
        """
        if name not in self._names:
            raise ArchiveError(self.path, "it was not written", name)
        if self._body is None:
            return _PLANNED
        with self._closing_on_failure():
            return self._body.digest(name).sha256

    def _add(self, name: str, data: bytes | bytearray | memoryview, *, compress: bool) -> None:
        content = data if type(data) is bytes else _as_bytes(data)
        self._admit(name)
        self._names[name] = None
        if self._body is not None:
            with self._closing_on_failure():
                self._body.add(name, content, compress=compress)

    def _complete(self, body: _Body) -> str:
        """Writes what makes an archive of the records, and returns the package digest."""
        self._require_open()
        with self._closing_on_failure():
            manifest = encode_manifest(body.digests())
        digest = hashlib.sha256(manifest).hexdigest()
        self._add(layout.MANIFEST, manifest, compress=False)
        self._add(layout.MANIFEST_DIGEST, digest.encode("ascii"), compress=False)
        with self._closing_on_failure():
            body.end()
        return digest

    def _refuse_reserved(self, name: str) -> None:
        if name in (layout.MANIFEST, layout.MANIFEST_DIGEST):
            raise ArchiveError(self.path, "commit() writes it, and nobody else", name)
        if name == layout.SIGNATURE:
            raise ArchiveError(self.path, "only what signs complete archives writes it", name)

    def _admit(self, name: str) -> None:
        self._require_open()
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, not {type(name).__name__}")
        reason = check_record_name(name) or self._why_too_long(name) or self._registry.add(name)
        if reason is not None:
            raise ArchiveError(self.path, reason, name)

    def _why_too_long(self, name: str) -> str | None:
        full, most = f"{layout.ROOT}/{name}", DEFAULT_LIMITS.max_name_bytes
        if len(full) * 4 > most < len(full.encode()):
            return f"the name is longer than {most} bytes"
        return None

    def _require_open(self) -> None:
        if self._closed_because is not None:
            raise ArchiveError(self.path, f"nothing can be written: {self._closed_because}")
        self._require_own()

    def _require_own(self) -> None:
        # They would share the position in the file.
        if self._sink is not None and self._sink.is_inherited:
            reason = "only the process that began to write it can go on, and no forked child"
            raise ArchiveError(self.path, reason)

    @contextlib.contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        # A record that was written in part cannot be taken back.
        self._require_own()
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
            f"data must be bytes, a bytearray or a memoryview, not {type(data).__name__}"
        )
    view = memoryview(data)
    if not view.c_contiguous:
        raise TypeError("data must be contiguous")
    return view.cast("B") if view.nbytes else memoryview(b"")
