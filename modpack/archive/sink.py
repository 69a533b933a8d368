"""What takes an archive's bytes, wherever they go."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import IO, Final

from modpack.archive.bytesources import FileBytes
from modpack.archive.inherited import keep_from_children
from modpack.errors import TargetError

__all__ = ["CHUNK_BYTES", "Sink"]

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
