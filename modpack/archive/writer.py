"""Writing a package, record by record, so that a failure leaves no trace."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Final

from modpack.archive import layout, zipformat
from modpack.archive.digests import BACKGROUND_FROM, Digest, Digester, digest_of
from modpack.archive.limits import DEFAULT_LIMITS
from modpack.archive.manifest import RecordDigest, encode_manifest
from modpack.archive.recordnames import NameRegistry, why_unsafe
from modpack.archive.sinks import CHUNK_BYTES, Sink, open_sink
from modpack.archive.zipformat import NewEntry
from modpack.errors import ArchiveError

__all__ = ["ArchiveWriter", "Checkpoint"]

_DEFLATE_LEVEL: Final = 6
_RAW_DEFLATE: Final = -15
_PLANNED: Final = Digest(0, "")


@dataclass(frozen=True)
class Checkpoint:
    """How far a writer had come: what :meth:`ArchiveWriter.rollback` goes back to.

    Attributes:
        records: how many records there were.
        position: bytes that they take.
        directory: bytes of their part of the zip's directory.
        inflated: bytes of the deflated ones among them once inflated.
    """

    records: int
    position: int
    directory: int
    inflated: int = 0


class ArchiveWriter:
    """Writes the records of one package, in the order of the calls.

    The same calls give the same bytes. Nothing is to be seen at the target before
    :meth:`commit`; leaving the ``with`` block without it, or by an exception, discards.

    Args:
        target: a path, or a binary buffer with ``write`` (it need not be seekable). None plans
            only: names are checked, nothing is written, and all digests are empty.
        root: the archive's top-level folder; by default the stem of the path, or "archive".

    Raises:
        TypeError: ``target`` is none of these.
        TargetError: the target cannot be written (a missing folder, a directory, ...).
        ArchiveError: ``root`` is no name for a folder.

    >>> import io
    >>> from modpack.archive import layout
    >>> with ArchiveWriter(io.BytesIO()) as writer:
    ...     writer.write(layout.VERSION, layout.VERSION_CONTENT)
    ...     writer.write("pkg/greeting.txt", b"hello")
    ...     digest = writer.commit()
    >>> len(digest)
    64
    """

    def __init__(
        self, target: str | os.PathLike[str] | BinaryIO | None, root: str | None = None
    ) -> None:
        self._sink: Sink | None = None if target is None else open_sink(target)
        self.source: str = "<plan>" if self._sink is None else self._sink.label
        self.root: str = _default_root(target) if root is None else root
        self._check_root()
        self._registry = NameRegistry()
        self._records: dict[str, RecordDigest] = {}
        self._directory = bytearray()
        self._position = 0
        self._inflated = 0
        self._contents: dict[str, tuple[int, int]] = {}
        self._digester = Digester()
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
        self._add(name, data, compress=compress, align=False)

    def write_storage(self, name: str, data: memoryview) -> None:
        """Adds a record that can be mapped: as it is, 64-byte aligned within the file.

        Args:
            name: relative to the top-level folder, usually from ``layout.storage_name``.
            data: the bytes of a tensor storage, contiguous, in any format or shape.

        Raises:
            TypeError: ``name`` is no str, or ``data`` no contiguous bytes.
            ArchiveError: the name is unsafe or taken, or the writer was closed.
            TargetError: the target cannot be written; the writer is then closed.
        """
        self._refuse_reserved(name)
        self._add(name, data, compress=False, align=True)

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
        if self._sink is None:
            self._close("it was committed")
            return _PLANNED.sha256
        digest = self._complete(self._sink)
        with self._closing_on_failure():
            self._sink.publish()
        self._close("it was committed")
        return digest

    def checkpoint(self) -> Checkpoint:
        """How far the archive has come by now."""
        self._require_open()
        return Checkpoint(len(self._records), self._position, len(self._directory), self._inflated)

    def rollback(self, to: Checkpoint) -> None:
        """Forgets the records that were written since a checkpoint; those before it stay.

        Raises:
            ArchiveError: the writer was closed.
            TargetError: the target cannot be written; the writer is then closed.
        """
        self._require_open()
        for name in list(self._records)[to.records :]:
            del self._records[name]
            self._contents.pop(name, None)
        self._registry.forget_after(to.records)
        del self._directory[to.directory :]
        self._position = to.position
        self._inflated = to.inflated
        if self._sink is not None:
            with self._closing_on_failure():
                self._sink.truncate(to.position)

    @contextlib.contextmanager
    def previewed(self) -> Iterator[str]:
        """The complete archive in a temporary file, as it would be if it ended here.

        Within the block nothing can be written; after it, writing goes on.

        Returns:
            A context manager for the file's path.

        Raises:
            ArchiveError: the writer was closed, or only plans.
            TargetError: the target cannot be written; the writer is then closed.
        """
        if self._sink is None:
            raise ArchiveError(self.source, "nothing is written: there is nothing to preview")
        before = self.checkpoint()
        self._complete(self._sink)
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
        if self._sink is None or name not in self._contents:
            raise ArchiveError(self.source, "it was not stored as it is", name)
        offset, remaining = self._contents[name]
        with open(self._sink.path(), "rb") as file:
            file.seek(offset)
            while remaining and (chunk := file.read(min(remaining, CHUNK_BYTES))):
                remaining -= len(chunk)
                yield chunk

    def discard(self) -> None:
        """Forgets everything written; the target stays as it was. Harmless after a commit."""
        self._close("it was discarded")

    def has(self, name: str) -> bool:
        """Whether a record of this very name was written."""
        return name in self._records

    def names(self) -> tuple[str, ...]:
        """The records' names, in the order they were written."""
        return tuple(self._records)

    def digest_of(self, name: str) -> str:
        """The sha256 of a written record's content, in hex; empty when only planning.

        Raises:
            ArchiveError: there is no such record.
        """
        record = self._records.get(name)
        if record is None:
            raise ArchiveError(self.source, "it was not written", name)
        return record.sha256

    def _add(
        self, name: str, data: bytes | bytearray | memoryview, *, compress: bool, align: bool
    ) -> None:
        view = _as_bytes(data)
        self._admit(name)
        if self._sink is None:
            self._records[name] = RecordDigest(len(view), _PLANNED.sha256)
            return
        with self._closing_on_failure():
            payload = self._deflated(view) if compress else None
            if payload is None:
                self._store(self._sink, name, view, align=align)
            else:
                self._write_deflated(self._sink, name, view, payload)

    def _deflated(self, view: memoryview) -> bytes | None:
        """The deflated content, or None if it had better be stored."""
        payload = _deflate(view)
        total = self._inflated + len(view)
        if payload is None or not DEFAULT_LIMITS.allow_total(self._position, total):
            return None
        self._inflated = total
        return payload

    def _store(self, sink: Sink, name: str, view: memoryview, *, align: bool) -> None:
        size, offset, full_name = len(view), self._position, self._full_name(name)
        if size < BACKGROUND_FROM:
            digest = digest_of(view)
            entry = NewEntry(full_name, offset, size, size, digest.crc)
            header = zipformat.local_header(entry, align=align)
            sink.write(header)
            sink.write(view)
        else:
            entry = NewEntry(full_name, offset, size, size)
            header = zipformat.local_header(entry, align=align)
            digest = self._write_while_digesting(sink, header, view)
            sink.patch(offset + zipformat.CRC_IN_LOCAL, digest.crc.to_bytes(4, "little"))
            entry = NewEntry(full_name, offset, size, size, digest.crc)
        self._note(name, entry, len(header), digest)

    def _write_while_digesting(self, sink: Sink, header: bytes, view: memoryview) -> Digest:
        pending = self._digester.start(view)
        try:
            sink.write(header)
            sink.write(view)
        finally:
            digest = pending.result()  # the caller's buffer is in use until then
        return digest

    def _write_deflated(self, sink: Sink, name: str, view: memoryview, payload: bytes) -> None:
        digest = digest_of(view)
        entry = NewEntry(
            self._full_name(name),
            self._position,
            len(view),
            len(payload),
            digest.crc,
            zipformat.DEFLATED,
        )
        header = zipformat.local_header(entry, align=False)
        sink.write(header)
        sink.write(payload)
        self._note(name, entry, len(header), digest)

    def _note(self, name: str, entry: NewEntry, header_bytes: int, digest: Digest) -> None:
        self._directory += zipformat.central_header(entry)
        if entry.method != zipformat.DEFLATED:
            self._contents[name] = (self._position + header_bytes, entry.size)
        self._position += header_bytes + entry.compressed
        self._records[name] = RecordDigest(entry.size, digest.sha256)

    def _complete(self, sink: Sink) -> str:
        """Writes what makes an archive of the records, and returns the package digest."""
        self._require_open()
        manifest = encode_manifest(self._records)
        digest = digest_of(manifest).sha256
        self._add(layout.MANIFEST, manifest, compress=True, align=False)
        self._add(layout.MANIFEST_DIGEST, digest.encode("ascii"), compress=False, align=False)
        with self._closing_on_failure():
            count, size = len(self._records), len(self._directory)
            sink.write(self._directory)
            sink.write(zipformat.end_records(count, size, self._position))
        return digest

    def _refuse_reserved(self, name: str) -> None:
        if name in (layout.MANIFEST, layout.MANIFEST_DIGEST):
            raise ArchiveError(self.source, "commit() writes it, and nobody else", name)
        if name == layout.SIGNATURE:
            raise ArchiveError(self.source, "only what signs complete archives writes it", name)

    def _admit(self, name: str) -> None:
        self._require_open()
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, not {type(name).__name__}")
        reason = why_unsafe(name) or self._why_too_long(name) or self._registry.add(name)
        if reason is not None:
            raise ArchiveError(self.source, reason, name)

    def _why_too_long(self, name: str) -> str | None:
        if len(self._full_name(name)) > DEFAULT_LIMITS.max_name_bytes:
            return f"the name is longer than {DEFAULT_LIMITS.max_name_bytes} bytes"
        return None

    def _full_name(self, name: str) -> bytes:
        return f"{self.root}/{name}".encode()

    def _check_root(self) -> None:
        reason = why_unsafe(self.root)
        if reason is not None or "/" in self.root:
            what = reason or "it has more than one component"
            raise ArchiveError(self.source, f"root {self.root!r} names no folder: {what}")

    def _require_open(self) -> None:
        if self._closed_because is not None:
            raise ArchiveError(self.source, f"nothing can be written: {self._closed_because}")

    @contextlib.contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        # A record that was written in part cannot be taken back.
        try:
            yield
        except BaseException:
            self._close("writing to it failed")
            raise

    def _close(self, reason: str) -> None:
        if self._closed_because is not None:
            return
        self._closed_because = reason
        self._digester.close()
        if self._sink is not None:
            self._sink.discard()


def _default_root(target: str | os.PathLike[str] | BinaryIO | None) -> str:
    if isinstance(target, (str, os.PathLike)):
        return layout.root_name(target)
    return layout.DEFAULT_ROOT


def _as_bytes(data: bytes | bytearray | memoryview) -> memoryview:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"data must be bytes, a bytearray or a memoryview, not {type(data).__name__}"
        )
    view = memoryview(data)
    if not view.c_contiguous:
        raise TypeError("data must be contiguous")
    return view.cast("B") if view.nbytes else memoryview(b"")


def _deflate(view: memoryview) -> bytes | None:
    """The deflated content, or None if it had better be stored."""
    if len(view) > DEFAULT_LIMITS.max_code_record_bytes:
        return None
    compressor = zlib.compressobj(_DEFLATE_LEVEL, zlib.DEFLATED, _RAW_DEFLATE)
    payload = compressor.compress(view) + compressor.flush()
    helps = len(payload) < len(view)
    readable = DEFAULT_LIMITS.allow_inflating(len(payload), len(view))
    return payload if helps and readable else None
