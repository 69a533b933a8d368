"""What runs in a process that hashes for another one: see :mod:`modpack.archive.writer`.

It imports nothing but the standard library: it starts in a hundredth of a second.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import select
import signal
import struct
import sys
import zlib

QUESTION = struct.Struct("<II")
"""Where records lie in the memory, and how many they are; the size of each follows."""
ANSWER = struct.Struct("<II")
"""Before checksums: where the records lie, and the crc32 of what follows. The standard output may
have been written to by something else, such as a script around Python that greets."""
_PATIENCE = 1.0
"""Seconds after which it looks whether the process that asks is still there."""


def main() -> None:
    """Answer what comes by the standard output, a socket, about the memory in standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # that of a terminal is meant for who asks
    asked_by = int(sys.argv[2])
    with mmap.mmap(0, 0, prot=mmap.PROT_READ) as memory:
        while (head := _read(QUESTION.size, asked_by)) is not None:
            offset, count = QUESTION.unpack(head)
            sizes = _read(4 * count, asked_by)
            if sizes is None:
                return
            answer = _digests(memory, offset, struct.unpack(f"<{count}I", sizes))
            _write(ANSWER.pack(offset, zlib.crc32(answer)) + answer)


def _digests(memory: mmap.mmap, offset: int, sizes: tuple[int, ...]) -> bytes:
    """The crc32 and the sha256 of each of the records that lie one behind the other."""
    answer = []
    with memoryview(memory) as whole:
        for size in sizes:
            with whole[offset : offset + size] as content:
                answer.append(zlib.crc32(content).to_bytes(4, "little"))
                answer.append(hashlib.sha256(content).digest())
            offset += size
    return b"".join(answer)


def _read(size: int, asked_by: int) -> bytes | None:
    """So many bytes; None if nobody is there any more who could ask."""
    data = b""
    while len(data) < size:
        if not select.select([1], [], [], _PATIENCE)[0]:
            if os.getppid() != asked_by:  # another child of it may hold the socket open
                return None
            continue
        more = os.read(1, size - len(data))
        if not more:
            return None
        data += more
    return data


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]
