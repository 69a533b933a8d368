"""Random access to an archive's bytes, without a shared position that threads could race for."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator

from modpack.archive.otherfiles import other_url
from modpack.errors import ArchiveError, NotAPackageError, PackageNotFoundError

__all__ = ["BufferBytes", "ByteSource", "FileBytes"]

# Nobody may ever write to a pipe that has a name: opening one would wait for that.
_READING = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


class ByteSource(ABC):
    """Bytes that can be read at any offset.

    Attributes:
        label: what the user called it, for messages.
        size: in bytes, as it was when it was opened.
    """

    label: str
    size: int

    @abstractmethod
    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset`` on.

        Raises:
            ArchiveError: they are not there, or the source was closed.
        """

    @contextlib.contextmanager
    def reading_end(self, length: int) -> Iterator[None]:
        """While much of what lies at the end is read: so many bytes may be read at once."""
        yield

    @abstractmethod
    def close(self) -> None:
        """Lets go of the source. May be called twice."""


class FileBytes(ByteSource):
    """A file on disk.

    Args:
        path: the file.
        label: what the user called it.

    Raises:
        NotAPackageError: it cannot be opened.
    """

    def __init__(self, path: str, label: str) -> None:
        self.label = label
        self.path = os.path.abspath(path)
        try:
            self._descriptor = os.open(path, _READING)
        except FileNotFoundError as error:
            raise PackageNotFoundError(
                label, other_url(label) or "there is no such file"
            ) from error
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise NotAPackageError(label, f"it cannot be opened: {_why(error)}") from error
        self._seeking = threading.Lock()
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise NotAPackageError(label, "it is no regular file")
        self._identity = _identity(status)
        self.size = status.st_size
        self._closed = False
        self._end = (self.size, b"")

    @contextlib.contextmanager
    def reading_end(self, length: int) -> Iterator[None]:
        before, start = self._end, max(0, self.size - length)
        self._end = (start, self._read(start, self.size - start))
        try:
            yield
        finally:
            self._end = before

    def read_at(self, offset: int, length: int) -> bytes:
        start, end = self._end
        if start <= offset and offset + length <= start + len(end) and not self._closed:
            return end[offset - start : offset - start + length]
        return self._read(offset, length)

    def _read(self, offset: int, length: int) -> bytes:
        if self._closed:
            raise ArchiveError(self.label, "it was closed")
        try:
            first = self._read_some(offset, length)
            if len(first) == length:
                return first
            return self._read_on(first, offset, length)
        except OSError as error:
            raise ArchiveError(self.label, f"it cannot be read: {_why(error)}") from error

    def send(self, descriptor: int, offset: int, length: int) -> int:
        """Copies bytes to another file without their coming here, as far as the system can.

        Returns:
            How many were copied; the caller has to copy the others.
        """
        sent = 0
        if hasattr(os, "copy_file_range") and not self._closed:
            # Whatever is in its way will be in the caller's way too, who can tell it better.
            with contextlib.suppress(OSError):
                while sent < length:
                    more = os.copy_file_range(
                        self._descriptor, descriptor, length - sent, offset + sent
                    )
                    if not more:
                        break
                    sent += more
        return sent

    def has_changed(self) -> bool:
        """Whether the path now leads to another file, or the file was written to."""
        try:
            return _identity(os.stat(self.path)) != self._identity
        except OSError:
            return True

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            with contextlib.suppress(OSError):
                self.close()

    def _read_on(self, first: bytes, offset: int, length: int) -> bytes:
        # One call reads at most 2 GiB on Linux, and may be interrupted.
        parts, missing = [first], length - len(first)
        while missing and parts[-1]:
            parts.append(self._read_some(offset + length - missing, missing))
            missing -= len(parts[-1])
        if missing:
            raise ArchiveError(self.label, "it ends too early: was it truncated while open?")
        return b"".join(parts)

    if hasattr(os, "pread"):

        def _read_some(self, offset: int, length: int) -> bytes:
            return os.pread(self._descriptor, length, offset)

    else:  # Windows

        def _read_some(self, offset: int, length: int) -> bytes:
            with self._seeking:
                os.lseek(self._descriptor, offset, os.SEEK_SET)
                return os.read(self._descriptor, length)


class BufferBytes(ByteSource):
    """Bytes in memory.

    Args:
        content: the whole archive.
    """

    def __init__(self, content: bytes | bytearray | memoryview) -> None:
        self.label = "<buffer>"
        self._view: memoryview | None = memoryview(content).toreadonly()
        self.size = len(content)

    def read_at(self, offset: int, length: int) -> bytes:
        return bytes(self.view_at(offset, length))

    def view_at(self, offset: int, length: int) -> memoryview:
        """Like :meth:`read_at`, without a copy."""
        if self._view is None:
            raise ArchiveError(self.label, "it was closed")
        if offset + length > self.size:
            raise ArchiveError(self.label, "it ends too early")
        return self._view[offset : offset + length]

    def close(self) -> None:
        self._view = None


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """What tells a file, as it is now, from others and from itself after a change.

    The time of the last change of its facts can be set by nobody: a write that puts the time of
    the last write back shows in it.
    """
    times = status.st_mtime_ns, status.st_ctime_ns
    return (status.st_dev, status.st_ino, status.st_size, *times)


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
