"""Checksums by a helper process, which sees the records in memory that it shares with this one.

A thread that hashes needs Python's lock twice a record, and waits for it up to 5 ms each time while
another thread pickles. A process waits for nobody: 20,000 tensors of 50 KB are saved in two thirds
of the time (benchmark row save-20000).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import os
import signal
import socket
import struct
import sys
import zlib
from collections import deque
from collections.abc import Iterator
from typing import IO, Final, cast

from modpack.core.process import (
    FIND_MODPACK,
    helpers_enabled,
    kill_helper,
    start_helper,
    start_if_possible,
    usable_cores,
)

_log = logging.getLogger(__name__)

_CAN_SHARE: Final = hasattr(os, "memfd_create") and hasattr(socket, "MSG_NOSIGNAL")
_START: Final = f"{FIND_MODPACK}; from modpack.archive.hash_helper import main; main()"
_SLOTS: Final = 6
_SLOT_BYTES: Final = 2 << 20
_SLOT_RECORDS: Final = 1 << 12
_COUNT: Final = struct.Struct("<I")
_ROW: Final = struct.Struct("<II32s")
"""Size, CRC-32, and SHA-256 of a record."""
_STRIDE: Final = _SLOT_BYTES + _COUNT.size + _SLOT_RECORDS * _ROW.size
_PATIENCE: Final = 5.0
"""Seconds to wait for the checksums of a slot, which take a thousandth of one."""
_LOOK_AROUND: Final = 1.0
"""Seconds after which an idle helper looks whether the process that started it still exists."""


class Slot:
    """Records in a part of the shared memory, followed by a table of their checksums."""

    def __init__(self, number: int, memory: memoryview) -> None:
        self.number = number
        self._memory = memory
        self._start = number * _STRIDE
        self._table = self._start + _SLOT_BYTES
        self.clear()

    def clear(self) -> None:
        """Forget all records."""
        self._contents: list[memoryview] = []
        self._end = self._start

    def add(self, content: bytes | memoryview) -> memoryview | None:
        """Copy a record into the slot; return the copy, or None if the slot is full."""
        end = self._end + len(content)
        if end > self._table or len(self._contents) == _SLOT_RECORDS:
            return None
        copy = self._memory[self._end : end]
        copy[:] = content
        self._end = end
        self._contents.append(copy)
        return copy

    def ask(self) -> None:
        """Write down the sizes, for the helper."""
        _COUNT.pack_into(self._memory, self._table, len(self._contents))
        for at, content in zip(self._rows(), self._contents, strict=False):
            _ROW.pack_into(self._memory, at, len(content), 0, b"")

    def answers(self) -> list[tuple[int, bytes]]:
        """Return the CRC-32 and SHA-256 of each record as the helper has written them."""
        rows = zip(self._rows(), self._contents, strict=False)
        return [_ROW.unpack_from(self._memory, at)[1:] for at, _ in rows]

    def hash(self) -> None:
        """Write the checksums into the table, in the helper."""
        (count,) = _COUNT.unpack_from(self._memory, self._table)
        start = self._start
        for at in self._rows()[:count]:
            size = _ROW.unpack_from(self._memory, at)[0]
            with self._memory[start : start + size] as content:
                _ROW.pack_into(self._memory, at, size, *_checksums(content))
            start += size

    def compute(self) -> list[tuple[int, bytes]]:
        """Compute the checksums in this process."""
        return [_checksums(content) for content in self._contents]

    def _rows(self) -> range:
        start = self._table + _COUNT.size
        return range(start, start + _SLOT_RECORDS * _ROW.size, _ROW.size)


def _checksums(content: memoryview) -> tuple[int, bytes]:
    return zlib.crc32(content), hashlib.sha256(content).digest()


class HashHelper:
    """The helper process, and the slots that it shares with this one.

    A helper that dies, hangs, or answers nonsense costs time only: its slots are computed here.

    Raises:
        OSError: If no memory can be shared or no process started.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._socket, other_end = socket.socketpair()
        self._socket.settimeout(_PATIENCE)
        self._is_lost = False
        try:
            with other_end, open(os.memfd_create("modpack-records"), "r+b", buffering=0) as file:
                file.truncate(_SLOTS * _STRIDE)
                memory = memoryview(mmap.mmap(file.fileno(), 0))
                with other_end.makefile("wb", buffering=0) as stream:
                    answers = cast(IO[bytes], stream)
                    self._process = start_helper(_START, [str(self._owner)], file, answers)
        except BaseException:
            self._socket.close()
            raise
        self._free = deque(Slot(number, memory) for number in range(_SLOTS))

    def slot(self) -> Slot | None:
        """Return an empty slot, or None if all are in use or the helper is lost."""
        return None if self._is_lost or not self._free else self._free.popleft()

    def begin(self, slot: Slot) -> None:
        """Have the helper hash a slot."""
        if self._is_lost:
            return
        slot.ask()
        with self._noticing_loss():
            # A program may let SIGPIPE kill it, but not for this pipe.
            self._socket.send(bytes([slot.number]), socket.MSG_NOSIGNAL)

    def digests(self, slot: Slot) -> list[tuple[int, bytes]]:
        """Return the CRC-32 and SHA-256 of each record of the slot that was begun first."""
        if not self._is_lost:
            with self._noticing_loss():
                if self._socket.recv(1) != bytes([slot.number]):
                    raise OSError("it does not answer the question")
        return slot.compute() if self._is_lost else slot.answers()

    def take_back(self, slot: Slot) -> None:
        """Reuse a slot. The copies that it returned must not be read any more."""
        slot.clear()
        self._free.append(slot)

    def close(self) -> None:
        """End the process; does nothing to it in a forked child."""
        self._is_lost = True
        self._socket.close()
        if self._owner == os.getpid():
            kill_helper(self._process)

    @contextlib.contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        try:
            yield
        except OSError as failure:  # a timeout is one, too
            self._is_lost = True
            _log.info("the process that helps hashing is given up (%s)", failure)


def start_hash_helper() -> HashHelper | None:
    """Return a helper, or None if none can be started or there is no core for it."""
    if not (_CAN_SHARE and helpers_enabled() and usable_cores() > 1):
        return None
    return start_if_possible(HashHelper, "hashing")


def main() -> None:
    """Hash the slots whose numbers arrive at standard output, a socket; run in the helper.

    Standard input is the shared memory.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the process that asks
    started_by = int(sys.argv[2])
    questions = socket.socket(fileno=1)
    questions.settimeout(_LOOK_AROUND)
    memory = memoryview(mmap.mmap(0, 0))
    while os.getppid() == started_by:  # other children of it may hold the socket open
        with contextlib.suppress(TimeoutError):
            question = questions.recv(1)
            if not question:
                return
            Slot(question[0], memory).hash()
            questions.send(question)
