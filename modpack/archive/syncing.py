"""Bringing what is written to the disk, beginning while more is being written."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Final

__all__ = ["Writeback", "sync_folder"]

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
