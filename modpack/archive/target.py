"""Files that a forked child must not write to: it inherits them, and what their buffers hold.

What takes an archive's bytes, wherever they go.

Writing many pieces at once, from where they are.

Temporary files beside a target, and what a killed export left of them.

Bringing what is written to the disk, beginning while more is being written.

Whether an archive can be written to a target, as far as one can tell without trying.

Where an archive's bytes go: nowhere near the target until all of them are there.
"""

from __future__ import annotations

import contextlib
import ctypes
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
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import IO, BinaryIO, Final
from weakref import WeakSet

from modpack.archive.base import FileBytes
from modpack.archive.other_files import other_url
from modpack.errors import TargetError

_files: Final[WeakSet[IO[bytes]]] = WeakSet()


def keep_from_children(file: IO[bytes]) -> None:
    """Lets nothing that a forked child does get into a file.

    A buffer is a copy in the child, which writes it when it ends, but the file is the same: its
    parent's bytes would be there twice.

    Args:
        file: one with a descriptor, or one that may come to have one when it grows.
    """
    _files.add(file)


def _lead_nowhere() -> None:
    """In a forked child: let the descriptors lead elsewhere; the parent's stay as they are."""
    for file in list(_files):
        if file.closed or file.name is None:  # it is in memory
            continue
        with contextlib.suppress(OSError):  # there are no descriptors left
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, file.fileno(), inheritable=False)
            os.close(nowhere)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lead_nowhere)


CHUNK_BYTES: Final = 8 << 20
"""Bytes that are written at once."""


class Sink(ABC):
    """Takes an archive's bytes, then puts them in place all at once or not at all.

    Args:
        label: the target as the user named it, for messages.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self._file: IO[bytes] | None = None
        self._begun_by = 0

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

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child of the process that has begun to write."""
        return self._file is not None and self._begun_by != os.getpid()

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
    def rest(self) -> None:
        """Tells that other work comes before more is written."""

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
            self._file, self._begun_by = self._open(), os.getpid()
            keep_from_children(self._file)
        return self._file

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Makes errors of the system in the block those of the target."""
        try:
            yield
        except OSError as error:
            raise TargetError(f"cannot write {self.label}: {error.strerror or error}") from error


WORTH_GATHERING: Final = 256 << 10
"""Bytes in all from which copying them together costs more than another call of the system."""
_MOST: Final = 1024
"""Pieces that every system takes at once."""


def write_gathered(file: IO[bytes], pieces: Sequence[bytes | bytearray | memoryview]) -> None:
    """Appends pieces to a file, without a copy in its buffer: 20 % of the time of 50 KB.

    Args:
        file: is at its end.
        pieces: what to write.

    Raises:
        OSError: they could not be written in full.
    """
    file.flush()
    if not hasattr(os, "writev"):  # Windows
        file.writelines(pieces)
        return
    for start in range(0, len(pieces), _MOST):
        some = pieces[start : start + _MOST]
        written = os.writev(file.fileno(), some)
        file.seek(0, os.SEEK_END)
        if written < sum(map(len, some)):  # the next call tells why
            file.write(b"".join(some)[written:])
            file.flush()


_SUFFIX: Final = ".modpack-tmp"
_WHOSE: Final = re.compile(r"(\d+)-([0-9a-f]{8})-[0-9a-f]+")
_LONGEST_STEM: Final = 40
"""Characters of the target's name that are kept: the result must fit into 255 bytes."""


def temporary_name(name: str, random: str) -> str:
    """Name of a temporary file for the target ``name``: it says whose it is."""
    return f"{_prefix(name)}{os.getpid()}-{_place()}-{random}{_SUFFIX}"


def remove_leftovers(folder: str, name: str) -> None:
    """Removes temporaries of the target ``name`` that were left by processes now dead.

    A file goes only if its name says that it was made here, by a process that can be known to
    have ended; a folder may be shared with other machines and containers.
    """
    if os.name != "posix":
        return  # elsewhere there is no harmless way to ask whether a process lives
    prefix = _prefix(name)
    with contextlib.suppress(OSError):  # tidying up is a courtesy, never a reason to fail
        for candidate in os.listdir(folder):
            if candidate.startswith(prefix) and candidate.endswith(_SUFFIX):
                match = _WHOSE.fullmatch(candidate[len(prefix) : -len(_SUFFIX)])
                if match and match[2] == _place() and _has_ended(int(match[1])):
                    os.unlink(os.path.join(folder, candidate))


def _prefix(name: str) -> str:
    return f".{name[:_LONGEST_STEM]}."


def _place() -> str:
    """Tells apart what has process ids of its own: hosts, and containers on a host."""
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


_EACH: Final = 16 << 20
"""Bytes after which the disk has something to do."""
_AT_REST: Final = 256 << 10
"""The same where nothing more is written for a while."""
_SYNC_FILE_RANGE_WRITE: Final = 2


class Writeback:
    """Has the disk begin with what is written, so that little is left to wait for at the end.

    2 GiB that nobody has begun to write are half a second of waiting for a fast disk, in which no
    processor has anything to do; of 1 MB, more than half of the time of syncing it is saved. It
    promises nothing: the file has still to be synced, which also tells what failed.
    """

    def __init__(self) -> None:
        self._descriptor = -1
        self._begun = 0

    def begin(self, descriptor: int) -> None:
        """Tells which file it is."""
        self._descriptor = descriptor

    def wrote_up_to(self, position: int, *, rests: bool = False) -> None:
        """Tells how much was written; the disk begins with it, if that is worth it.

        Args:
            position: where the file ends.
            rests: whether other work comes before more is written.
        """
        self._begun = min(self._begun, position)  # what came after it may have been cut off
        size = position - self._begun
        if size >= (_AT_REST if rests else _EACH):
            _begin_writing()(self._descriptor, self._begun, size)
            self._begun = position


@lru_cache(maxsize=1)
def _begin_writing() -> Callable[[int, int, int], object]:
    """Asks the system to begin to write a part of a file, by descriptor, start and size in bytes.

    It is Linux's ``sync_file_range``, which Python does not have, told to wait for nothing; it
    waits only while the disk's queue is full. What the disk has by then stays in the page cache.
    Where a file system does not do that it says so, and nothing is lost. Other systems begin when
    they are asked to sync.
    """
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError, TypeError):  # another system, or another C library
        return lambda *_: None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return lambda descriptor, start, size: call(descriptor, start, size, _SYNC_FILE_RANGE_WRITE)


def sync_folder(folder: str) -> None:
    """Makes the renaming itself survive a power failure, where the system can do that."""
    # The archive is in place already: an error here must not look like a failed export.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def mode_of_target(target: str, path: str) -> int | None:
    """Permission bits of the file that is there, None if there is none.

    Args:
        target: as the user named it, for messages.
        path: where that leads.

    Raises:
        TargetError: nothing can be written there.
    """
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        reason = other_url(target, is_target=True) or f"the folder {folder} does not exist"
        raise TargetError(f"cannot write {target}: {reason}")
    try:
        found = os.stat(path)
    except FileNotFoundError:
        found = None
    except OSError as error:
        raise TargetError(f"cannot write {target}: {error.strerror}") from error
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise TargetError(f"cannot write {target}: it is a directory")
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise TargetError(f"cannot write {target}: it is no regular file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise TargetError(f"cannot write {target}: no permission to write in the folder {folder}")
    return None if found is None else stat.S_IMODE(found.st_mode)


def is_text(buffer: object) -> bool:
    """Whether a file object takes text, and no bytes."""
    mode = getattr(buffer, "mode", None)
    opened_as_text = isinstance(mode, str) and "b" not in mode and hasattr(buffer, "encoding")
    return isinstance(buffer, io.TextIOBase) or opened_as_text


def require_writable(buffer: object) -> None:
    """Refuses a file object that says of itself that it cannot be written to.

    Raises:
        TargetError: it does.
    """
    writable = getattr(buffer, "writable", None)
    try:
        allowed = writable() if callable(writable) else True
    except ValueError as error:  # what io raises for a closed file
        raise TargetError(f"cannot write <buffer>: {error}") from error
    if not allowed:
        raise TargetError("cannot write <buffer>: it was not opened for writing")


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
