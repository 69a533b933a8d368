"""What sources say about imports, kept from one export to the next.

With it is kept whether a source is clean: that nothing in it looks like a secret. What does look
like one is not kept: it is found again each time.

A scan depends on the source's bytes, the module's path, Python's parser and this scanner, and on
nothing else. Their digest names the entry, so that an entry is never out of date, and two processes
that write the same one write the same bytes. Each entry begins with a checksum of its own: one that
was cut off or changed is made again. That a source cannot be parsed is not kept: it may be for want
of memory, or because of a limit of this process.

Scans by helpers: other processes, which scan what will be asked for while this one works.

The walk takes what waits from the near end, helpers from the far end; in the middle they meet. A
helper answers nothing. It fills the scan cache, in which the walk looks for every scan anyway, by
the digest of what it has read itself. So nothing is trusted that was not trusted before, and
whatever becomes of a helper costs time only: what it did not do, the walk does.

Helpers have nothing but the scanner: see :mod:`modpack.core.process`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Final

from modpack._version import __version__
from modpack.core.cache_dir import cache_folder, make_private, refuse_strangers
from modpack.core.plan_json import scan_from_json, scan_to_json
from modpack.core.process import (
    FIND_MODPACK,
    helpers_wanted,
    if_possible,
    start_helper,
    usable_cores,
)
from modpack.core.scan import ModuleScan
from modpack.discovery.import_scanner import scan_source
from modpack.discovery.secrets import TextKind, find_secrets
from modpack.discovery.walk import Coming, Scan

_log = logging.getLogger(__name__)
_LAYOUT = "v1"
_CHECKSUM = 16
"""Bytes of the checksum that an entry begins with."""


def scans_of_user() -> ScanCache | None:
    """This user's cache of scans; None without a home to have one in."""
    try:
        return ScanCache(cache_folder() / "scans" / _LAYOUT)
    except RuntimeError:
        return None


class ScanCache:
    """Scans sources, and remembers what they say.

    Args:
        folder: where entries are kept, for this user only; made if it is not there. If it cannot
            be used, everything works as without it, only slower.

    Attributes:
        folder: the same.
        is_writable: whether new entries are kept.
        misses: how many sources it was asked for and did not know.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.misses = 0
        self._is_usable = self.is_writable = True
        try:
            make_private(folder)
            refuse_strangers(folder)
            _scanner()  # it has no files where modpack is in a zip
        except OSError as failure:
            self._is_usable = self.is_writable = False
            _log.info("scans are not kept (%s): each export reads all sources anew", failure)

    def scan(self, source: bytes, module: str, is_package: bool) -> ModuleScan:
        """What :func:`.scan_source` says of a module, and whether it is clean."""
        if not self._is_usable:
            return scan_source(source, module, is_package)
        file = self._file(source, module, is_package)
        known = _read(file)
        if known is not None:
            return known
        self.misses += 1
        scan = _scanned(source, module, is_package)
        self._write(file, scan)
        return scan

    def prepare(self, source: bytes, module: str, is_package: bool) -> None:
        """Make sure that a source need not be scanned when it is asked for."""
        file = self._file(source, module, is_package)
        if self.is_writable and not os.path.exists(file):  # noqa: PTH110 - there are many
            self._write(file, _scanned(source, module, is_package))

    def _file(self, source: bytes, module: str, is_package: bool) -> str:
        key = hashlib.blake2b(_scanner(), digest_size=20)
        key.update(f"{module}\0{is_package:d}\0".encode("utf-8", "surrogatepass"))
        key.update(source)
        name = key.hexdigest()
        # Few folders: in each of 256 new ones, making a file takes ext4 five times as long.
        return f"{self.folder}{os.sep}{name[:1]}{os.sep}{name[1:]}"

    def _write(self, file: str, scan: ModuleScan) -> None:
        if not self.is_writable or scan.failure is not None:
            return
        body = scan_to_json(scan)
        try:
            _put(Path(file), _checksum(body) + body)
        except OSError as failure:
            self.is_writable = False
            _log.info("further scans are not kept (%s)", failure)


def _scanned(source: bytes, module: str, is_package: bool) -> ModuleScan:
    scan = scan_source(source, module, is_package)
    if find_secrets(source, TextKind.SOURCE):
        return replace(scan, is_clean=False, defined=scan.defined.without_values())
    return replace(scan, is_clean=True)


def _read(file: str) -> ModuleScan | None:
    """An entry; None if there is none, or none that is whole."""
    try:
        with open(file, "rb", buffering=0) as opened:  # noqa: PTH123 - there are many
            content = opened.read()
    except OSError:
        return None
    body = content[_CHECKSUM:]
    if content[:_CHECKSUM] != _checksum(body):
        return None
    try:
        return scan_from_json(body)
    except (ValueError, TypeError, LookupError):  # whole, but of another make
        return None


def _put(file: Path, content: bytes) -> None:
    """Write a file beside its place and rename it into it."""
    try:
        descriptor, temporary = tempfile.mkstemp(suffix=".tmp", dir=file.parent)
    except FileNotFoundError:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(suffix=".tmp", dir=file.parent)
    making = Path(temporary)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content)
        making.replace(file)
    except BaseException:
        making.unlink(missing_ok=True)
        raise


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECKSUM).digest()


@cache
def _scanner() -> bytes:
    """Names the code that scans: Python with its parser, and this room's sources."""
    digest = hashlib.blake2b(f"{sys.version}\0{__version__}".encode(), digest_size=20)
    here, core = Path(__file__).parent, Path(__file__).parents[1] / "core"
    for file in (*sorted(here.glob("*.py")), core / "scan.py", core / "plan_json.py"):
        digest.update(file.read_bytes())
    return digest.digest()


_START: Final = f"{FIND_MODPACK}; from modpack.discovery.scan_helper import main; main()"
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
