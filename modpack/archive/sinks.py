"""Where an archive's bytes go: nowhere near the target until all of them are there."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Sequence
from typing import IO, BinaryIO, Final

from modpack.archive.gathered import WORTH_GATHERING, write_gathered
from modpack.archive.inherited import keep_from_children
from modpack.archive.leftovers import remove_leftovers, temporary_name
from modpack.archive.sink import CHUNK_BYTES, Sink
from modpack.archive.syncing import Writeback, sync_folder
from modpack.archive.targets import is_text, mode_of_target, require_writable
from modpack.errors import TargetError

__all__ = ["BufferSink", "PathSink", "open_sink"]

_BUFFERED_BYTES: Final = 1 << 20
_SPOOL_IN_MEMORY_BYTES: Final = 64 << 20


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
        self._writeback = Writeback()
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
        self._writeback.begin(descriptor)
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
            self._writeback.wrote_up_to(self._opened().tell())

    def rest(self) -> None:
        if self._file is not None:
            with self.reporting():
                self._writeback.wrote_up_to(self._file.tell(), rests=True)

    def publish(self) -> None:
        with self.reporting():
            file = self._opened()
            file.flush()
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
            keep_from_children(self._file)
            file.seek(0)
            shutil.copyfileobj(file, self._file, CHUNK_BYTES)
            file.close()
        return self._named

    def rest(self) -> None:
        """The disk has nothing to do."""

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
