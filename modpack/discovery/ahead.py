"""Scans by helpers: other processes, which scan what will be asked for while this one works.

The walk takes what waits from the near end, helpers from the far end; in the middle they meet. A
helper answers nothing. It fills the scan cache, in which the walk looks for every scan anyway, by
the digest of what it has read itself. So nothing is trusted that was not trusted before, and
whatever becomes of a helper costs time only: what it did not do, the walk does.

Helpers have nothing but the scanner: see :mod:`modpack.core.helpers`.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Final

from modpack.core.helpers import (
    FIND_MODPACK,
    helpers_wanted,
    if_possible,
    start_helper,
    usable_cores,
)
from modpack.discovery.modules import Scan
from modpack.discovery.scancache import ScanCache, scans_of_user
from modpack.discovery.source import scan_source
from modpack.discovery.walk import Coming

__all__ = ["ScanAhead", "remembering_scan"]

_START: Final = f"{FIND_MODPACK}; from modpack.discovery.scanhelper import main; main()"
_MISSES: Final = 8
"""Sources that had to be scanned here, before others are taken to be unknown as well."""
_WORTH_A_START: Final = 48
"""Sources that take about as long as starting a helper does: 0.1 seconds."""
_MOST_HELPERS: Final = 3
"""More would wait for the walk, which does a quarter of the work itself."""
_PATIENCE: Final = 5.0
"""Seconds that a helper has to end after being told to; it may be inside a large source."""


def remembering_scan() -> tuple[Scan, ScanAhead | None]:
    """:func:`scan_source` with this user's cache, and what fills that ahead, if there is one."""
    cache = scans_of_user()
    return (scan_source, None) if cache is None else (cache.scan, ScanAhead(cache))


class ScanAhead:
    """Has sources scanned into a cache before they are asked for, where that is faster.

    Args:
        cache: where scans are kept; it tells how many it did not know.
        most_helpers: how many processes may run; by default as many as there are cores besides
            the one that walks, but few.
    """

    def __init__(self, cache: ScanCache, most_helpers: int | None = None) -> None:
        self._cache = cache
        self._wanted = most_helpers
        self._helpers: list[subprocess.Popen[bytes]] = []

    def is_worth_it(self, waiting: int) -> bool:
        """Whether it would save time to say what comes, if so many sources wait."""
        if waiting < _WORTH_A_START or self._cache.misses < _MISSES:
            return False
        return self._cache.is_writable and self._most > 0

    @cached_property
    def _most(self) -> int:
        """How many helpers may run. Asked when sources wait: it takes longer than a small walk."""
        if self._wanted is not None:
            return self._wanted
        return min(usable_cores() - 1, _MOST_HELPERS) if helpers_wanted() else 0

    def expect(self, coming: Sequence[Coming]) -> None:
        """Let helpers scan what comes, the last first.

        Args:
            coming: in the order in which it will be asked for.
        """
        self.end()
        count = min(self._most, len(coming) // _WORTH_A_START)
        backwards = coming[::-1]
        for number in range(count):
            work = backwards[number::count]
            helper = if_possible(partial(_helper, self._cache.folder, work), "scanning")
            if helper is None:
                self._most = 0
                return
            self._helpers.append(helper)

    def end(self) -> None:
        """End all helpers, wherever they are."""
        for helper in self._helpers:
            helper.terminate()
        for helper in self._helpers:
            try:
                helper.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                helper.kill()
                helper.wait()
        self._helpers.clear()


def _helper(folder: Path, work: Iterable[Coming]) -> subprocess.Popen[bytes]:
    """Start a helper."""
    with tempfile.TemporaryFile() as file:
        for each in work:
            line = json.dumps((each.file, each.module, each.is_package))
            file.write(line.encode("ascii") + b"\n")
        file.seek(0)
        return start_helper(_START, [str(folder), str(os.getpid())], file)
