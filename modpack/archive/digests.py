"""Checksums of record contents, off the writing thread where that pays."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

__all__ = ["BACKGROUND_FROM", "Digest", "Threads", "digest_of"]

BACKGROUND_FROM: Final = 1 << 20
"""Bytes from which handing the data to other threads costs less than it saves."""

_READ_BYTES: Final = 1 << 20

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Digest:
    """Checksums of one record's content.

    Attributes:
        crc: crc32, which zip wants.
        sha256: hex digest, which the manifest wants.
    """

    crc: int
    sha256: str


class Threads:
    """Two threads, made when there is work: zlib and hashlib release the GIL while they read.

    Where none can be started, as at the limit of a container or while Python ends, what they were
    to do is done at once.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._can_start = True

    def run(self, function: Callable[[_Argument], _Result], argument: _Argument) -> Future[_Result]:
        """Calls a function on one of them.

        Args:
            function: leaves nothing behind but its result: it may be called twice.
            argument: what it is called with.
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(2, thread_name_prefix="modpack-digest")
        if self._can_start:
            try:
                return self._pool.submit(function, argument)
            except RuntimeError:  # the other thread may do it none the less
                self._can_start = False
        return _done(function, argument)

    def digest_of_written(self, descriptor: int, offset: int, size: int) -> Future[Digest]:
        """Begins to compute the checksums of what is in a file; that must stay as it is."""
        return self.run(_digest_of_written, (descriptor, offset, size))

    def close(self) -> None:
        """Ends the threads; what they have not begun is not done any more."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def digest_of(data: bytes | memoryview) -> Digest:
    """The checksums of ``data``, computed here and now."""
    return Digest(zlib.crc32(data), _sha256(data))


def _digest_of_written(place: tuple[int, int, int]) -> Digest:
    descriptor, offset, remaining = place
    crc, sha256, buffer = 0, hashlib.sha256(), memoryview(bytearray(min(_READ_BYTES, remaining)))
    while remaining:
        count = os.preadv(descriptor, [buffer[:remaining]], offset)
        if not count:
            raise OSError("what was written is not there any more")
        read = buffer[:count]
        crc = zlib.crc32(read, crc)
        sha256.update(read)
        offset, remaining = offset + count, remaining - count
    return Digest(crc, sha256.hexdigest())


def _done(function: Callable[[_Argument], _Result], argument: _Argument) -> Future[_Result]:
    future: Future[_Result] = Future()
    try:
        future.set_result(function(argument))
    except Exception as error:
        future.set_exception(error)
    return future


def _sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()
