"""Bringing what is written to the disk while more is being written."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Final

__all__ = ["SyncingAhead", "sync_folder"]

_EACH: Final = 128 << 20
"""Bytes after which the disk has something to do."""
_AT_REST: Final = 16 << 20
"""The same where nothing more is written for a while."""
_WORTH_BEGINNING: Final = 256 << 10
"""Bytes that the disk is asked to begin with then, if they are too few for a thread."""
_SYNC_FILE_RANGE_WRITE: Final = 2


class SyncingAhead:
    """Syncs a file on a thread, time and again, so that little is left to wait for at the end.

    2 GiB that nobody has begun to write are half a second of waiting for a fast disk, in which no
    processor has anything to do. A system without ``fdatasync`` syncs at the end only.
    """

    def __init__(self) -> None:
        self._descriptor = -1
        self._begun = 0
        self._asked = 0
        self._thread: ThreadPoolExecutor | None = None
        self._running: Future[None] | None = None

    def begin(self, descriptor: int) -> None:
        """Tells which file it is."""
        self._descriptor = descriptor

    def wrote_up_to(self, position: int, *, rests: bool = False) -> None:
        """Tells how much was written; syncs it if that is worth it, and nothing is under way.

        Args:
            position: where the file ends.
            rests: whether other work comes before more is written.

        Raises:
            OSError: something that was written before cannot be brought to the disk.
        """
        worth = _AT_REST if rests else _EACH
        if position - self._begun < worth or not hasattr(os, "fdatasync"):
            if rests:
                self._ask_to_begin(position)
            return
        if self._running is not None:
            if not self._running.done():
                return
            self._running.result()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="modpack-sync")
        self._begun = position
        with contextlib.suppress(
            RuntimeError
        ):  # no thread can be started: the end is synced anyway
            self._running = self._thread.submit(os.fdatasync, self._descriptor)

    def _ask_to_begin(self, position: int) -> None:
        """Has the disk begin with what nobody has begun with, and waits for nothing."""
        begun = max(self._begun, self._asked)
        if position - begun >= _WORTH_BEGINNING:
            self._asked = position
            _begin_writing()(self._descriptor, begun, position - begun)

    def end(self) -> None:
        """Waits for what is under way; the file can be closed then.

        Raises:
            OSError: what was written cannot be brought to the disk. The system says so only once.
        """
        thread, self._thread = self._thread, None
        running, self._running = self._running, None
        if thread is not None:
            thread.shutdown()
        if running is not None:
            running.result()


@lru_cache(maxsize=1)
def _begin_writing() -> Callable[[int, int, int], object]:
    """Asks the system to begin to write a part of a file, by descriptor, start and size in bytes.

    It is Linux's ``sync_file_range``, which Python does not have, told to wait for nothing. What
    the disk has by then stays in the page cache. It answers with an error where a file system does
    not do that; the sync at the end tells of all others.
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
