"""Checksums by a helper: another process, which sees the same memory and has a lock of its own.

A thread that computes checksums has to ask for Python's lock twice a record, and gets it when the
thread that writes gives it up: every 5 milliseconds, in which 200 records could be done. A
process asks nobody. It sees a piece of memory through which the records go: see
:mod:`modpack.core.helpers` for what else there is to it.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import socket
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Final, cast

from modpack.archive.digests import Digest, digest_of
from modpack.archive.hashhelper import ANSWER, QUESTION
from modpack.core.helpers import (
    FIND_MODPACK,
    helpers_wanted,
    if_possible,
    kill_helper,
    usable_cores,
)
from modpack.core.helpers import start_helper as start_process

if TYPE_CHECKING:
    import subprocess

__all__ = ["HashHelper", "SharedBatch", "start_helper"]

_log = logging.getLogger(__name__)

_START: Final = f"{FIND_MODPACK}; from modpack.archive.hashhelper import main; main()"
_BATCH_BYTES: Final = 2 << 20
"""Bytes of the records that are handed over together."""
_BATCHES: Final = 6
_PATIENCE: Final = 5.0
"""Seconds to wait for the checksums of a batch, which take a thousandth of one."""
_DIGEST: Final = struct.Struct("<I32s")


class SharedBatch:
    """Records that lie one behind the other in a piece of the shared memory.

    Args:
        offset: where the piece begins.
        memory: the piece.

    Attributes:
        contents: those of the records.
    """

    def __init__(self, offset: int, memory: memoryview) -> None:
        self.offset = offset
        self.contents: list[memoryview] = []
        self.memory = memory
        self._filled = 0

    def has_room(self, size: int) -> bool:
        """Whether so many bytes can be added."""
        return self._filled + size <= len(self.memory)

    def add(self, content: bytes | memoryview) -> memoryview:
        """Copy a record's content here; returns the copy."""
        end = self._filled + len(content)
        copy = self.memory[self._filled : end]
        copy[:] = content
        self._filled = end
        self.contents.append(copy)
        return copy


class HashHelper:
    """The process, and the memory that it sees.

    Whatever becomes of it costs time only: what it does not answer is computed here.

    Raises:
        OSError: it cannot be started here.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._process, memory = _started(theirs)
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(_PATIENCE)
        self._is_lost = False
        starts = range(0, _BATCHES * _BATCH_BYTES, _BATCH_BYTES)
        self._free = deque((start, memory[start : start + _BATCH_BYTES]) for start in starts)

    @property
    def can_take_more(self) -> bool:
        """Whether there is room for another batch, and somebody to work on it."""
        return bool(self._free) and not self._is_lost

    def batch(self) -> SharedBatch:
        """An empty batch; only if it can take more."""
        return SharedBatch(*self._free.popleft())

    def begin(self, batch: SharedBatch) -> None:
        """Has the checksums of a batch computed."""
        sizes = [len(content) for content in batch.contents]
        message = QUESTION.pack(batch.offset, len(sizes)) + struct.pack(f"<{len(sizes)}I", *sizes)
        if self._is_lost:
            return
        with self._noticing_loss():
            # A program may want to be killed by SIGPIPE, but not by this.
            if self._socket.send(message, socket.MSG_NOSIGNAL) != len(message):
                raise OSError("it does not take any more")

    def digests(self, batch: SharedBatch) -> list[Digest]:
        """The checksums of the batch that was begun first of those that still have none."""
        if not self._is_lost:
            with self._noticing_loss():
                answer = self._answer(batch)
                return [Digest(crc, sha256.hex()) for crc, sha256 in _DIGEST.iter_unpack(answer)]
        return [digest_of(content) for content in batch.contents]

    def take_back(self, batch: SharedBatch) -> None:
        """Lets the memory of a batch be used again."""
        self._free.append((batch.offset, batch.memory))

    def close(self) -> None:
        """Ends the process; harmless in a forked child, whose it is not."""
        self._is_lost = True
        self._socket.close()
        if self._owner == os.getpid():
            kill_helper(self._process)

    def _answer(self, batch: SharedBatch) -> bytes:
        about, checksum = ANSWER.unpack(self._received(ANSWER.size))
        answer = self._received(_DIGEST.size * len(batch.contents))
        if (about, checksum) != (batch.offset, zlib.crc32(answer)):
            raise OSError("what it says is no answer")
        return answer

    def _received(self, size: int) -> bytes:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            count = self._socket.recv_into(rest)
            if not count:
                raise OSError("it has ended")
            rest = rest[count:]
        return bytes(data)

    @contextlib.contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        """Gives the process up if it does not answer in the block."""
        try:
            yield
        except OSError as failure:  # a timeout is one, too
            self._is_lost = True
            _log.info("the process that helps hashing is given up (%s)", failure)


def start_helper() -> HashHelper | None:
    """A helper, where one can be started and has a core to run on."""
    if not (_CAN_SHARE and helpers_wanted() and usable_cores() > 1):
        return None
    return if_possible(HashHelper, "hashing")


_CAN_SHARE: Final = hasattr(os, "memfd_create") and hasattr(socket, "MSG_NOSIGNAL")


def _started(answers: socket.socket) -> tuple[subprocess.Popen[bytes], memoryview]:
    """Start the process; returns it and the memory that it sees."""
    with open(os.memfd_create("modpack-records"), "r+b", buffering=0) as file:
        file.truncate(_BATCHES * _BATCH_BYTES)
        memory = memoryview(mmap.mmap(file.fileno(), _BATCHES * _BATCH_BYTES))
        with answers.makefile("wb", buffering=0) as stream:
            process = start_process(_START, [str(os.getpid())], file, cast(IO[bytes], stream))
    return process, memory
