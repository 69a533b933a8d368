"""Writing a package, record by record, so that a failure leaves no trace."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Final

from modpack.archive import layout
from modpack.archive.body import Body, Extent
from modpack.archive.digests import digest_of
from modpack.archive.limits import DEFAULT_LIMITS
from modpack.archive.manifest import encode_manifest
from modpack.archive.recordnames import NameRegistry, why_unsafe
from modpack.archive.sink import Sink
from modpack.archive.sinks import open_sink
from modpack.core.garbage import collection_paused
from modpack.errors import ArchiveError

__all__ = ["ArchiveWriter", "Checkpoint"]

_PLANNED: Final = ""
"""The digest of what is not written."""
_FAILED: Final = "writing to it failed"


@dataclass(frozen=True)
class Checkpoint:
    """How far a writer had come: what :meth:`ArchiveWriter.rollback` goes back to.

    Attributes:
        records: how many records there were.
        extent: how far they reach; None when only planning.
    """

    records: int
    extent: Extent | None


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
        self.source: str = "<plan>" if self._sink is None else self._sink.label
        self._registry = NameRegistry()
        self._names: dict[str, None] = {}
        self._body = None if self._sink is None else Body(self._sink)
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
            raise ArchiveError(self.source, "it is not called as a storage must be", name)
        self._add(name, data, compress=False)

    @collection_paused()
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
        with self._closing_on_failure():
            extent = None if self._body is None else self._body.extent()
        return Checkpoint(len(self._names), extent)

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
        if self._body is not None and to.extent is not None:
            with self._closing_on_failure():
                self._body.cut(to.extent)

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
        if self._sink is None or self._body is None:
            raise ArchiveError(self.source, "nothing is written: there is nothing to preview")
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
            raise ArchiveError(self.source, "it was not stored as it is", name)
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
            raise ArchiveError(self.source, "it was not written", name)
        if self._body is None:
            return _PLANNED
        with self._closing_on_failure():
            return self._body.digest(name).sha256

    def _add(self, name: str, data: bytes | bytearray | memoryview, *, compress: bool) -> None:
        content = data if type(data) is bytes else _as_bytes(data)
        self._admit(name)
        self._names[name] = None
        if self._body is not None:
            try:
                self._body.add(name, content, compress=compress)
            except BaseException:
                self._close(_FAILED)
                raise

    def _complete(self, body: Body) -> str:
        """Writes what makes an archive of the records, and returns the package digest."""
        self._require_open()
        with self._closing_on_failure():
            manifest = encode_manifest(body.digests())
        digest = digest_of(manifest).sha256
        self._add(layout.MANIFEST, manifest, compress=False)
        self._add(layout.MANIFEST_DIGEST, digest.encode("ascii"), compress=False)
        with self._closing_on_failure():
            body.end()
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
        full, most = f"{layout.ROOT}/{name}", DEFAULT_LIMITS.max_name_bytes
        if len(full) * 4 > most < len(full.encode()):
            return f"the name is longer than {most} bytes"
        return None

    def _require_open(self) -> None:
        if self._closed_because is not None:
            raise ArchiveError(self.source, f"nothing can be written: {self._closed_because}")
        self._require_own()

    def _require_own(self) -> None:
        # They would share the position in the file, and the process that hashes.
        if self._sink is not None and self._sink.is_inherited:
            reason = "only the process that began to write it can go on, and no forked child"
            raise ArchiveError(self.source, reason)

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
