"""What sources say about imports, kept from one export to the next.

With it is kept whether a source is clean: that nothing in it looks like a secret. What does look
like one is not kept: it is found again each time.

A scan depends on the source's bytes, the module's path, Python's parser and this scanner, and on
nothing else. Their digest names the entry, so that an entry is never out of date, and two processes
that write the same one write the same bytes. Each entry begins with a checksum of its own: one that
was cut off or changed is made again. That a source cannot be parsed is not kept: it may be for want
of memory, or because of a limit of this process.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from modpack._version import __version__
from modpack.core.cachefolder import cache_folder, make_private, refuse_strangers
from modpack.core.imports import ModuleScan
from modpack.core.scanjson import scan_from_json, scan_to_json
from modpack.discovery.leaks.finding import TextKind, find_secrets
from modpack.discovery.source import scan_source

__all__ = ["ScanCache", "scans_of_user"]

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
        """What :func:`modpack.discovery.source.scan_source` says, and whether it is clean."""
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
    scanner = (*sorted(here.glob("*.py")), *sorted((here / "leaks").glob("*.py")))
    for file in (*scanner, core / "defined.py", core / "imports.py", core / "scanjson.py"):
        digest.update(file.read_bytes())
    return digest.digest()
