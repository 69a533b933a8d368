"""Atomic output of an archive: the target does not change until all bytes are written.

For a path, a temporary file next to it is written, flushed to disk, and renamed. A buffer receives
its first byte when the archive is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, BinaryIO, Final
from weakref import WeakSet

from modpack.core.names import url_of
from modpack.core.process import ThreadPool
from modpack.errors import TargetError

if TYPE_CHECKING:
    from concurrent.futures import Future

CHUNK_BYTES: Final = 8 << 20
"""Maximum size of one write, so that an interrupt does not wait for gigabytes."""
_BUFFERED_BYTES: Final = 1 << 20
_SYNC_BYTES: Final = 64 << 20
"""Bytes after which a background sync starts. Without it, the final sync of 2 GiB takes another
half second (benchmark rows save-one and save-400)."""
_SYNC: Final = getattr(os, "fdatasync", os.fsync)
_SPOOL_IN_MEMORY_BYTES: Final = 64 << 20
_SUFFIX: Final = ".modpack-tmp"
_MAX_STEM: Final = 40
"""Characters of the target's name in a temporary name, which must fit into 255."""

# A forked child inherits a copy of the unflushed buffer and would flush it at exit, so that the
# parent's file contains these bytes twice. In a child, these files are redirected to /dev/null.
_open_files: Final[WeakSet[IO[bytes]]] = WeakSet()


def _close_in_forked_child() -> None:
    for file in list(_open_files):
        if file.closed or file.name is None:  # a file in memory
            continue
        with contextlib.suppress(OSError):  # out of file descriptors
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, file.fileno(), inheritable=False)
            os.close(null)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_forked_child)


class Sink(ABC):
    """Collects an archive's bytes and publishes them atomically, or discards them.

    Args:
        label: The target as the user named it, for messages.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self._file: IO[bytes] | None = None
        self._owner = os.getpid()

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    @abstractmethod
    def _open(self) -> IO[bytes]:
        """Create the temporary file. Called once, before the first write."""

    @abstractmethod
    def _path_of(self, file: IO[bytes]) -> str:
        """Return a path at which the file can be opened. The caller flushes it."""

    @abstractmethod
    def publish(self) -> None:
        """Replace the target with the written bytes.

        Raises:
            TargetError: If the target cannot be written.
        """

    @abstractmethod
    def discard(self) -> None:
        """Discard the written bytes and leave the target unchanged. May be called twice."""

    def begin(self) -> None:
        """Create the temporary file if it does not exist."""
        if self._file is None:
            with self.reporting():
                self._opened()

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a forked child of the one that started writing."""
        return self._file is not None and self._owner != os.getpid()

    def write(self, *pieces: bytes | memoryview) -> None:
        """Append pieces.

        Raises:
            TargetError: If the target cannot be written.
        """
        with self.reporting():
            file = self._opened()
            for data in pieces:
                if len(data) <= CHUNK_BYTES:
                    file.write(data)
                    continue
                view = memoryview(data)
                for start in range(0, len(view), CHUNK_BYTES):
                    file.write(view[start : start + CHUNK_BYTES])

    def write_readable(self, header: bytes, content: memoryview) -> int | None:
        """Append a record if its bytes can be read back from the file immediately.

        Returns:
            The file descriptor, or None if nothing was written.
        """
        return None

    def patch(self, offset: int, data: bytes) -> None:
        """Overwrite already written bytes at ``offset`` from the start."""
        with self.reporting():
            file = self._opened()
            file.seek(offset)
            file.write(data)
            file.seek(0, os.SEEK_END)

    def path(self) -> str:
        """Return a path with all bytes written so far. It is valid until the next write.

        Raises:
            TargetError: If the target cannot be written.
        """
        with self.reporting():
            path = self._path_of(self._opened())
            self._opened().flush()
            return path

    def truncate(self, size: int) -> None:
        """Discard all but the first ``size`` bytes."""
        with self.reporting():
            file = self._opened()
            file.seek(size)
            file.truncate()

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            self._file, self._owner = self._open(), os.getpid()
            _open_files.add(self._file)
        return self._file

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Convert an OSError into a TargetError."""
        try:
            yield
        except OSError as error:
            raise TargetError(f"cannot write {self.label}: {error.strerror or error}") from error


class PathSink(Sink):
    """A file, written to a temporary file in the same folder and then renamed.

    Args:
        target: The path to write. A symlink is kept; the file that it points to is replaced.

    Raises:
        TargetError: If the path is obviously not writable.
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        problem, hint = _find_path_problem(target)
        if problem:
            raise TargetError(f"cannot write {target!r}: {problem}", hint=hint)
        self._path = os.path.realpath(target)
        self._folder, self._name = os.path.split(self._path)
        self._mode = _mode_of_target(target, self._path)
        self._temporary = ""
        self._threads = ThreadPool(1)
        self._syncing: Future[None] | None = None
        self._unsynced = 0

    def _open(self) -> IO[bytes]:
        _remove_leftovers(self._folder, self._name)
        owner = f"{os.getpid()}-{_pid_namespace()}-{secrets.token_hex(8)}"
        temporary = os.path.join(self._folder, f"{_temporary_prefix(self._name)}{owner}{_SUFFIX}")
        # O_EXCL never follows a symlink that another user created. The initial mode is not wider
        # than the mode of the file to be replaced.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        mode = 0o666 if self._mode is None else self._mode & 0o777 | stat.S_IWUSR
        self._temporary = temporary  # first: an interrupt can arrive once the file exists
        descriptor = os.open(temporary, flags, mode)
        return open(descriptor, "wb", buffering=_BUFFERED_BYTES)

    def _path_of(self, file: IO[bytes]) -> str:
        return self._temporary

    def write(self, *pieces: bytes | memoryview) -> None:
        super().write(*pieces)
        self._unsynced += sum(map(len, pieces))
        if self._unsynced >= _SYNC_BYTES and (self._syncing is None or self._syncing.done()):
            with self.reporting():
                self._finish_syncing()
                self._syncing = self._threads.run(_SYNC, self._opened().fileno())
            self._unsynced = 0

    def write_readable(self, header: bytes, content: memoryview) -> int | None:
        if not hasattr(os, "preadv"):  # macOS before 11, and Windows
            return None
        self.write(header, content)
        with self.reporting():
            file = self._opened()
            file.flush()
            return file.fileno()

    def _finish_syncing(self) -> None:
        # The kernel reports a write error only once, so the final fsync would not report it again.
        if self._syncing is not None:
            self._syncing.result()

    def publish(self) -> None:
        with self.reporting():
            file = self._opened()
            self._finish_syncing()
            file.flush()
            os.fsync(file.fileno())
            file.close()
            if self._mode is not None:
                os.chmod(self._temporary, self._mode)
            os.replace(self._temporary, self._path)
            self._temporary = ""
        # Sync the folder so that the rename survives a power failure, where the system supports
        # that. The archive is in place already, so an error must not look like a failed export.
        with contextlib.suppress(OSError):
            descriptor = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def discard(self) -> None:
        if self._owner != os.getpid():
            return  # in a forked child; the file belongs to the parent process
        self._threads.close()  # before the descriptor can be reused for another file
        if self._file is not None:
            with contextlib.suppress(OSError):  # unflushed data is discarded anyway
                self._file.close()
        if self._temporary:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)
            self._temporary = ""


class BufferSink(Sink):
    """A binary buffer, which receives its first byte when the archive is complete.

    Args:
        write: The buffer's ``write`` method.
        is_raw: Whether that method returns None if it wrote nothing (:class:`io.RawIOBase`).
    """

    def __init__(self, write: Callable[[memoryview], int | None], is_raw: bool = False) -> None:
        super().__init__("<buffer>")
        self._write = write
        self._is_raw = is_raw
        self._named = ""

    def _open(self) -> IO[bytes]:
        return tempfile.SpooledTemporaryFile(_SPOOL_IN_MEMORY_BYTES)

    def _path_of(self, file: IO[bytes]) -> str:
        # Move the data to a named file. This copies it once instead of on each call.
        if not self._named:
            descriptor, self._named = tempfile.mkstemp(prefix="modpack-", suffix=_SUFFIX)
            self._file = os.fdopen(descriptor, "w+b", _BUFFERED_BYTES)
            _open_files.add(self._file)
            file.seek(0)
            shutil.copyfileobj(file, self._file, CHUNK_BYTES)
            file.close()
        return self._named

    def publish(self) -> None:
        with self.reporting():
            spool = self._opened()
            spool.seek(0)
            while chunk := memoryview(spool.read(CHUNK_BYTES)):
                while chunk:
                    written = self._write(chunk)
                    if written is None and not self._is_raw:
                        break  # many duck-typed buffers return None after a full write
                    if not written or written < 0:  # None: a non-blocking file is not ready
                        raise OSError("the buffer accepts no more bytes")
                    chunk = chunk[written:]
        self.discard()

    def discard(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._named and self._owner == os.getpid():
            with contextlib.suppress(OSError):
                os.unlink(self._named)
            self._named = ""


def open_sink(target: str | os.PathLike[str] | BinaryIO) -> Sink:
    """Return the sink for a path or a binary buffer.

    Raises:
        TypeError: If ``target`` is neither, or a text buffer.
        TargetError: If the target cannot be written.
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
    if _is_text(target):
        raise TypeError("target must be a binary buffer, not a text one. Open it with mode 'wb'.")
    writable = getattr(target, "writable", None)
    try:
        is_writable = writable() if callable(writable) else True
    except ValueError as error:  # raised by io for a closed file
        raise TargetError(f"cannot write <buffer>: {error}") from error
    if not is_writable:
        raise TargetError("cannot write <buffer>: the buffer was not opened for writing")
    # The wrapper of a temporary file has the raw file as an attribute.
    is_raw = any(isinstance(e, io.RawIOBase) for e in (target, getattr(target, "file", None)))
    return BufferSink(write, is_raw)


def write_atomically(target: str | os.PathLike[str], content: bytes) -> None:
    """Write a file atomically.

    Raises:
        TargetError: If the file cannot be written. An existing file is then unchanged.
    """
    with open_sink(target) as sink:
        sink.write(content)
        sink.publish()


def _is_text(buffer: object) -> bool:
    mode = getattr(buffer, "mode", None)
    opened_as_text = isinstance(mode, str) and "b" not in mode and hasattr(buffer, "encoding")
    return isinstance(buffer, io.TextIOBase) or opened_as_text


def _find_path_problem(target: str) -> tuple[str, str]:
    """Return why a path cannot name a file, and the fix. Both are empty if it can."""
    if not target:
        return "the path is empty", "Pass the path of a file."
    if "\0" in target:
        return "the path contains a NUL character", "Remove it from the path."
    if not os.path.basename(target):
        return "the path ends with a separator", "Append a file name to the path."
    return "", ""


def _mode_of_target(target: str, path: str) -> int | None:
    """Return the permission bits of the file at ``path``, or None if it does not exist.

    Raises:
        TargetError: If the target cannot be written.
    """
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        reason, hint = f"the folder {folder} does not exist", "Create the folder."
        url = url_of(target)
        if url is not None:
            opened = f"with fsspec.open({url!r}, 'wb') as file: modpack.save(model, file)"
            reason = "modpack writes files, and this is a URL"
            hint = f"Write a file and upload it, or pass a file object: {opened}"
        raise TargetError(f"cannot write {target}: {reason}", hint=hint)
    try:
        found = os.stat(path)
    except FileNotFoundError:
        found = None
    except OSError as error:
        raise TargetError(f"cannot write {target}: {error.strerror}") from error
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise TargetError(
            f"cannot write {target}: this is a folder", hint="Append a file name to the path."
        )
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise TargetError(
            f"cannot write {target}: this is not a regular file", hint="Choose another path."
        )
    # Replacing a file takes permissions of its folder, not of the file.
    if not os.access(folder, os.W_OK | os.X_OK):
        raise TargetError(f"cannot write {target}: no permission to write in the folder {folder}")
    return None if found is None else stat.S_IMODE(found.st_mode)


def _remove_leftovers(folder: str, name: str) -> None:
    """Remove temporary files for the target ``name`` whose processes have ended.

    The folder may be shared with other machines and containers. Only files whose names contain
    this host and PID namespace and a process that has ended are removed.
    """
    if os.name != "posix":
        return  # other systems have no safe way to check whether a process exists
    prefix = _temporary_prefix(name)
    with contextlib.suppress(OSError):  # failing to clean up must not fail the export
        for candidate in os.listdir(folder):
            if candidate.startswith(prefix) and candidate.endswith(_SUFFIX):
                rest = candidate[len(prefix) : -len(_SUFFIX)]
                match = re.fullmatch(r"(\d+)-([0-9a-f]{8})-[0-9a-f]+", rest)
                if match and match[2] == _pid_namespace() and _has_ended(int(match[1])):
                    os.unlink(os.path.join(folder, candidate))


def _temporary_prefix(name: str) -> str:
    return f".{name[:_MAX_STEM]}."


def _pid_namespace() -> str:
    """Return an identifier of the host and PID namespace, which differs between containers."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return hashlib.sha256(f"{socket.gethostname()} {namespace}".encode()).hexdigest()[:8]


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False
