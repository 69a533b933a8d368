"""Checksums computed by a helper process that shares memory with this one.

A hashing thread acquires the GIL twice per record, and waits up to 5 ms each time while another
thread pickles. A process does not: saving 20,000 tensors of 50 KB takes two thirds of the time
(benchmark row save-20000).
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
_START: Final = f"{FIND_MODPACK}; from modpack.writing.hash_helper import main; main()"
_SLOTS: Final = 6
_SLOT_BYTES: Final = 2 << 20
_SLOT_RECORDS: Final = 1 << 12
_COUNT: Final = struct.Struct("<I")
_ROW: Final = struct.Struct("<II32s")
"""Size, CRC-32, and SHA-256 of a record."""
_STRIDE: Final = _SLOT_BYTES + _COUNT.size + _SLOT_RECORDS * _ROW.size
_TIMEOUT_SECONDS: Final = 5.0
"""How long to wait for the checksums of a slot, which take about a millisecond."""
_PARENT_CHECK_SECONDS: Final = 1.0
"""How often an idle helper checks whether its parent process still exists."""


class Slot:
    """A section of the shared memory with records, followed by a table of their checksums."""

    def __init__(self, number: int, memory: memoryview) -> None:
        self.number = number
        self._memory = memory
        self._start = number * _STRIDE
        self._table = self._start + _SLOT_BYTES
        self.clear()

    def clear(self) -> None:
        """Remove all records."""
        self._contents: list[memoryview] = []
        self._end = self._start

    def add(self, content: bytes | memoryview) -> memoryview | None:
        """Copy a record into the slot and return the copy, or None if the slot is full."""
        end = self._end + len(content)
        if end > self._table or len(self._contents) == _SLOT_RECORDS:
            return None
        copy = self._memory[self._end : end]
        copy[:] = content
        self._end = end
        self._contents.append(copy)
        return copy

    def write_sizes(self) -> None:
        """Write the record sizes into the table, for the helper."""
        _COUNT.pack_into(self._memory, self._table, len(self._contents))
        for row, content in zip(self._rows(), self._contents, strict=False):
            _ROW.pack_into(self._memory, row, len(content), 0, b"")

    def read_checksums(self) -> list[tuple[int, bytes]]:
        """Return the CRC-32 and SHA-256 of each record from the table."""
        rows = zip(self._rows(), self._contents, strict=False)
        return [_ROW.unpack_from(self._memory, row)[1:] for row, _ in rows]

    def write_checksums(self) -> None:
        """Compute the checksums and write them into the table. Runs in the helper."""
        (count,) = _COUNT.unpack_from(self._memory, self._table)
        start = self._start
        for row in self._rows()[:count]:
            size = _ROW.unpack_from(self._memory, row)[0]
            with self._memory[start : start + size] as content:
                _ROW.pack_into(self._memory, row, size, *_checksums(content))
            start += size

    def compute_checksums(self) -> list[tuple[int, bytes]]:
        """Return the CRC-32 and SHA-256 of each record, computed in this process."""
        return [_checksums(content) for content in self._contents]

    def _rows(self) -> range:
        start = self._table + _COUNT.size
        return range(start, start + _SLOT_RECORDS * _ROW.size, _ROW.size)


def _checksums(content: memoryview) -> tuple[int, bytes]:
    return zlib.crc32(content), hashlib.sha256(content).digest()


class HashHelper:
    """The helper process and the slots in shared memory.

    If the helper exits, hangs, or sends an unexpected reply, this process computes its slots.

    Raises:
        OSError: If memory cannot be shared or the process cannot be started.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._socket, other_end = socket.socketpair()
        self._socket.settimeout(_TIMEOUT_SECONDS)
        self._is_lost = False
        try:
            with other_end, open(os.memfd_create("modpack-records"), "r+b", buffering=0) as file:
                file.truncate(_SLOTS * _STRIDE)
                memory = memoryview(mmap.mmap(file.fileno(), 0))
                with other_end.makefile("wb", buffering=0) as stream:
                    replies = cast(IO[bytes], stream)
                    self._process = start_helper(_START, [str(self._owner)], file, replies)
        except BaseException:
            self._socket.close()
            raise
        self._free = deque(Slot(number, memory) for number in range(_SLOTS))

    def slot(self) -> Slot | None:
        """Return an empty slot, or None if all are in use or the helper is lost."""
        return None if self._is_lost or not self._free else self._free.popleft()

    def submit(self, slot: Slot) -> None:
        """Let the helper hash a slot."""
        if self._is_lost:
            return
        slot.write_sizes()
        with self._detecting_loss():
            # Without MSG_NOSIGNAL, SIGPIPE kills programs that restored its default action.
            self._socket.send(bytes([slot.number]), socket.MSG_NOSIGNAL)

    def digests(self, slot: Slot) -> list[tuple[int, bytes]]:
        """Return the CRC-32 and SHA-256 of each record. Slots must be passed in submit order."""
        if not self._is_lost:
            with self._detecting_loss():
                if self._socket.recv(1) != bytes([slot.number]):
                    raise OSError("unexpected reply")
        return slot.compute_checksums() if self._is_lost else slot.read_checksums()

    def release(self, slot: Slot) -> None:
        """Make a slot available again. Copies that it returned must not be used afterwards."""
        slot.clear()
        self._free.append(slot)

    def close(self) -> None:
        """Stop the process. In a forked child, only close the socket."""
        self._is_lost = True
        self._socket.close()
        if self._owner == os.getpid():
            kill_helper(self._process)

    @contextlib.contextmanager
    def _detecting_loss(self) -> Iterator[None]:
        try:
            yield
        except OSError as failure:  # TimeoutError is a subclass
            self._is_lost = True
            _log.info("the hash helper process is no longer used (%s)", failure)


def start_hash_helper() -> HashHelper | None:
    """Return a helper, or None if it cannot be started or there is only one core."""
    if not (_CAN_SHARE and helpers_enabled() and usable_cores() > 1):
        return None
    return start_if_possible(HashHelper, "hashing")


def main() -> None:
    """Run the helper: hash each slot whose number arrives on the socket at file descriptor 1.

    Standard input is the shared memory.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process
    parent = int(sys.argv[2])
    requests = socket.socket(fileno=1)
    requests.settimeout(_PARENT_CHECK_SECONDS)
    memory = memoryview(mmap.mmap(0, 0))
    while os.getppid() == parent:  # other children of the parent may keep the socket open
        with contextlib.suppress(TimeoutError):
            request = requests.recv(1)
            if not request:
                return
            Slot(request[0], memory).write_checksums()
            requests.send(request)
