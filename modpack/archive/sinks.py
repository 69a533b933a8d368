"""Where an archive's bytes go: nowhere near the target until all of them are there."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import IO, BinaryIO, Final

from modpack.archive.bytesources import FileBytes
from modpack.archive.gathered import WORTH_GATHERING, write_gathered
from modpack.archive.leftovers import remove_leftovers, temporary_name
from modpack.archive.syncing import SyncingAhead, sync_folder
from modpack.archive.targets import is_text, mode_of_target, require_writable
from modpack.errors import TargetError

__all__ = ["BufferSink", "PathSink", "Sink", "open_sink"]

CHUNK_BYTES: Final = 8 << 20
_BUFFERED_BYTES: Final = 1 << 20
_SPOOL_IN_MEMORY_BYTES: Final = 64 << 20


class Sink(ABC):
    """Takes an archive's bytes, then puts them in place all at once or not at all.

    Args:
        label: the target as the user named it, for messages.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self._file: IO[bytes] | None = None

    @abstractmethod
    def _open(self) -> IO[bytes]:
        """Makes the temporary file; called once, at the first byte."""

    @abstractmethod
    def publish(self) -> None:
        """Puts what was written in place of the target's old content.

        Raises:
            TargetError: the target cannot be written.
        """

    @abstractmethod
    def discard(self) -> None:
        """Forgets what was written; the target stays as it was. May be called twice."""

    def begin(self) -> None:
        """Makes the temporary file, unless it is there."""
        if self._file is None:
            with self.reporting():
                self._opened()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Appends ``data``, in chunks, so that an interrupt need not wait for gigabytes."""
        self.write_all([data])

    def write_all(self, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        """Appends several pieces; see :meth:`write`."""
        with self.reporting():
            file = self._opened()
            for data in pieces:
                if len(data) <= CHUNK_BYTES:
                    file.write(data)
                    continue
                view = memoryview(data)
                for start in range(0, len(view), CHUNK_BYTES):
                    file.write(view[start : start + CHUNK_BYTES])

    def write_from(self, source: FileBytes, offset: int, length: int) -> None:
        """Appends ``length`` bytes of a file, from ``offset`` on; a fast way to copy gigabytes.

        Raises:
            TargetError: the target cannot be written.
            ArchiveError: the file cannot be read.
        """
        with self.reporting():
            file = self._opened()
            file.flush()
            sent = source.send(file.fileno(), offset, length)
            file.seek(0, os.SEEK_END)
        for start in range(offset + sent, offset + length, CHUNK_BYTES):
            self.write(source.read_at(start, min(CHUNK_BYTES, offset + length - start)))

    def patch(self, offset: int, data: bytes) -> None:
        """Overwrites bytes that were written before, ``offset`` bytes from the start."""
        with self.reporting():
            file = self._opened()
            file.seek(offset)
            file.write(data)
            file.seek(0, os.SEEK_END)

    @abstractmethod
    def _path_of(self, file: IO[bytes]) -> str:
        """A path under which others can read what was written; flushed by the caller."""

    def path(self) -> str:
        """Where what was written can be read by now, for as long as nothing more is written.

        Raises:
            TargetError: the target cannot be written.
        """
        with self.reporting():
            path = self._path_of(self._opened())
            self._opened().flush()
            return path

    @property
    def is_readable(self) -> bool:
        """Whether what was written can be read while more is written."""
        return False

    def descriptor(self) -> int:
        """A descriptor from which all that was written by now can be read, at the same offsets.

        Raises:
            TargetError: the target cannot be written.
        """
        with self.reporting():
            file = self._opened()
            file.flush()
            return file.fileno()

    def truncate(self, size: int) -> None:
        """Forgets all but the first ``size`` bytes."""
        with self.reporting():
            file = self._opened()
            file.seek(size)
            file.truncate()

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            self._file = self._open()
        return self._file

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Makes errors of the system in the block those of the target."""
        try:
            yield
        except OSError as error:
            raise TargetError(f"cannot write {self.label}: {error.strerror or error}") from error


class PathSink(Sink):
    """A file, written beside its place and renamed into it.

    Args:
        target: where the archive shall be. A link is kept; what it points to is replaced.

    Raises:
        TargetError: nothing can be written there, as far as one can tell without trying.
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        if not os.path.basename(target) or "\0" in target:
            raise TargetError(f"cannot write {target!r}: that names no file")
        self._path = os.path.realpath(target)
        self._folder, self._name = os.path.split(self._path)
        self._mode = mode_of_target(target, self._path)
        self._temporary = ""
        self._syncing = SyncingAhead()
        self._owner = os.getpid()

    def _open(self) -> IO[bytes]:
        remove_leftovers(self._folder, self._name)
        temporary = os.path.join(self._folder, temporary_name(self._name, secrets.token_hex(8)))
        # O_EXCL: never through a link that somebody put there. The first mode lets nobody in
        # whom the old file kept out.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        mode = 0o666 if self._mode is None else self._mode & 0o777 | stat.S_IWUSR
        descriptor = os.open(temporary, flags, mode)
        self._temporary = temporary
        self._syncing.begin(descriptor)
        return open(descriptor, "wb", buffering=_BUFFERED_BYTES)

    def _path_of(self, file: IO[bytes]) -> str:
        return self._temporary

    @property
    def is_readable(self) -> bool:
        return hasattr(os, "preadv")  # Windows does not have it

    def write_all(self, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        size = sum(map(len, pieces))
        with self.reporting():
            if WORTH_GATHERING <= size <= CHUNK_BYTES:
                write_gathered(self._opened(), pieces)
            else:
                super().write_all(pieces)
            self._syncing.wrote_up_to(self._opened().tell())

    def publish(self) -> None:
        with self.reporting():
            file = self._opened()
            file.flush()
            self._syncing.end()
            os.fsync(file.fileno())
            file.close()
            if self._mode is not None:
                os.chmod(self._temporary, self._mode)
            os.replace(self._temporary, self._path)
            self._temporary = ""
        sync_folder(self._folder)

    def discard(self) -> None:
        if self._owner != os.getpid():
            return  # a forked child holds a copy of this object, but the file is its parent's
        if self._file is not None:
            with contextlib.suppress(OSError):  # what cannot be flushed is not wanted anyway
                self._syncing.end()
            with contextlib.suppress(OSError):
                self._file.close()
        if self._temporary:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)
            self._temporary = ""


class BufferSink(Sink):
    """A binary buffer, which gets its first byte when the archive is complete.

    Args:
        write: the buffer's ``write``.
    """

    def __init__(self, write: Callable[[memoryview], int | None]) -> None:
        super().__init__("<buffer>")
        self._write = write
        self._named = ""
        self._owner = os.getpid()

    def _open(self) -> IO[bytes]:
        return tempfile.SpooledTemporaryFile(_SPOOL_IN_MEMORY_BYTES)

    def _path_of(self, file: IO[bytes]) -> str:
        """Moves what was written to a file that has a name; it is copied once, not each time."""
        if not self._named:
            descriptor, self._named = tempfile.mkstemp(prefix="modpack-", suffix=".modpack-tmp")
            self._file = os.fdopen(descriptor, "w+b", _BUFFERED_BYTES)
            file.seek(0)
            shutil.copyfileobj(file, self._file, CHUNK_BYTES)
            file.close()
        return self._named

    def publish(self) -> None:
        with self.reporting():
            spool = self._opened()
            spool.seek(0)
            while chunk := spool.read(CHUNK_BYTES):
                self._write_all(memoryview(chunk))
        self.discard()

    def discard(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._named and self._owner == os.getpid():
            with contextlib.suppress(OSError):
                os.unlink(self._named)
            self._named = ""

    def _write_all(self, chunk: memoryview) -> None:
        while chunk:
            written = self._write(chunk)
            if written is None:  # many duck-typed buffers return nothing and have taken all
                return
            if written <= 0:
                raise OSError("the buffer takes no more bytes")
            chunk = chunk[written:]


def open_sink(target: str | os.PathLike[str] | BinaryIO) -> Sink:
    """The sink for a path or a binary buffer.

    Raises:
        TypeError: ``target`` is neither, or a buffer for text.
        TargetError: nothing can be written there.
    """
    if isinstance(target, (str, os.PathLike)):
        path = os.fspath(target)
        if not isinstance(path, str):
            raise TypeError("target must be a str path, not a bytes path")
        return PathSink(path)
    write = getattr(target, "write", None)
    if not callable(write):
        raise TypeError(
            "target must be a path, a binary buffer with write(), or None, "
            f"not {type(target).__name__}"
        )
    if is_text(target):
        raise TypeError("target must be a binary buffer, not one for text; open it with mode 'wb'")
    require_writable(target)
    return BufferSink(write)
