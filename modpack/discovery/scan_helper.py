"""What runs in a process that scans sources for another one."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from modpack.discovery.scan_cache import ScanCache

_KEPT_FREE = (32 << 20) - (64 << 10)
"""The largest block of which glibc learns; twice as much is then kept that is free."""


def main() -> None:
    """Do what the command line and the standard input say, as long as it is wanted."""
    folder, asked_by = Path(sys.argv[2]), int(sys.argv[3])
    told_to_end: list[int] = []
    for each in (signal.SIGTERM, signal.SIGINT):  # neither ends it in the middle of an entry
        signal.signal(each, lambda number, _: told_to_end.append(number))

    def is_wanted() -> bool:
        # Windows starts the Python of a virtual environment from yet another process.
        is_alone = sys.platform != "win32" and os.getppid() != asked_by
        return not told_to_end and not is_alone

    # A block that is freed teaches glibc how much memory is worth keeping. Without that, what the
    # parser frees goes back to the system after each source and is faulted in again: a twentieth.
    bytes(_KEPT_FREE)
    scan_all(folder, sys.stdin.buffer, is_wanted)


def scan_all(folder: Path, lines: Iterable[bytes], is_wanted: Callable[[], bool]) -> None:
    """Scan sources into a cache.

    Args:
        folder: the cache's folder.
        lines: one JSON list for each source: its file, the module's path, whether it is a package.
        is_wanted: asked before each of them.
    """
    cache = ScanCache(folder)
    for line in lines:
        if not is_wanted():
            return
        file, module, is_package = json.loads(line)
        try:
            source = Path(file).read_bytes()
        except OSError:  # whoever wants it will say so
            continue
        cache.prepare(source, module, is_package)
