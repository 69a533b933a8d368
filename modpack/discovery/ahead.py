"""Scans by helpers: other processes, which scan what will be asked for while this one works.

The walk takes what waits from the near end, helpers from the far end; in the middle they meet. A
helper answers nothing. It fills the scan cache, in which the walk looks for every scan anyway, by
the digest of what it has read itself. So nothing is trusted that was not trusted before, and
whatever becomes of a helper costs time only: what it did not do, the walk does.

Helpers run this Python, isolated, with nothing but the scanner: they import neither torch nor the
user's main module, and can be started from anywhere.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from modpack.discovery.modules import Scan
from modpack.discovery.scancache import ScanCache, scans_of_user
from modpack.discovery.source import scan_source
from modpack.discovery.walk import Coming

__all__ = ["ScanAhead", "remembering_scan", "usable_cores"]

_log = logging.getLogger(__name__)
_START: Final = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from modpack.discovery.scanhelper import main; main()"
)
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
        spare = min(usable_cores() - 1, _MOST_HELPERS)
        self._most = spare if most_helpers is None else most_helpers
        self._helpers: list[subprocess.Popen[bytes]] = []

    def is_worth_it(self, waiting: int) -> bool:
        """Whether it would save time to say what comes, if so many sources wait."""
        if waiting < _WORTH_A_START or self._most < 1 or not self._cache.is_writable:
            return False
        return self._cache.misses >= _MISSES

    def expect(self, coming: Sequence[Coming]) -> None:
        """Let helpers scan what comes, the last first.

        Args:
            coming: in the order in which it will be asked for.
        """
        self.end()
        count = min(self._most, len(coming) // _WORTH_A_START)
        backwards = coming[::-1]
        try:
            for number in range(count):
                self._helpers.append(_helper(self._cache.folder, backwards[number::count]))
        except (OSError, RuntimeError, ValueError) as failure:
            self._most = 0
            _log.info("no process can be started to help scanning (%s)", failure)

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


def usable_cores() -> int:
    """How many processes of this user's can run at a time, as far as that is known."""
    with contextlib.suppress(AttributeError, OSError):  # not every system tells
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _helper(folder: Path, work: Iterable[Coming]) -> subprocess.Popen[bytes]:
    """Start a helper. Its work is a file: a pipe would have to be fed."""
    python = sys.executable or ""
    if not Path(python).name.lower().startswith(("python", "pypy")):
        raise OSError(f"sys.executable is {python!r}, which may not be Python")
    home = Path(__file__).parents[2]
    with tempfile.TemporaryFile() as file:
        for each in work:
            line = json.dumps((each.file, each.module, each.is_package))
            file.write(line.encode("ascii") + b"\n")
        file.seek(0)
        # -S: what is installed is no concern of a scanner's, and looking at it takes its time.
        return subprocess.Popen(
            [python, "-I", "-S", "-c", _START, str(home), str(folder), str(os.getpid())],
            stdin=file,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
