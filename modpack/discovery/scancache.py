"""What sources say about imports, kept from one export to the next.

A scan depends on the source's bytes, the module's path, Python's parser and this scanner, and on
nothing else. Their digest names the entry, so that an entry is never out of date, and two processes
that write the same one write the same bytes. Each entry begins with a checksum of its own: one that
was cut off or changed is made again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from modpack._version import __version__
from modpack.core.cachefolder import cache_folder, make_private, refuse_strangers
from modpack.core.imports import ModuleScan
from modpack.core.scanjson import scan_from_json, scan_to_json
from modpack.discovery.source import scan_source

__all__ = ["ScanCache", "remembering_scan"]

_log = logging.getLogger(__name__)
_LAYOUT = "v1"
_CHECKSUM = 16
"""Bytes of the checksum that an entry begins with."""


def remembering_scan() -> Callable[[bytes, str, bool], ModuleScan]:
    """:func:`scan_source`, with what it said before in this user's cache."""
    try:
        folder = cache_folder() / "scans" / _LAYOUT
    except RuntimeError:  # there is no home to have a cache in
        return scan_source
    return ScanCache(folder).scan


class ScanCache:
    """Scans sources, and remembers what they say.

    Args:
        folder: where entries are kept, for this user only; made if it is not there. If it cannot
            be used, everything works as without it, only slower.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_usable = self._is_writable = True
        try:
            make_private(folder)
            refuse_strangers(folder)
        except OSError as failure:
            self._is_usable = self._is_writable = False
            _log.info("scans are not kept (%s): each export reads all sources anew", failure)

    def scan(self, source: bytes, module: str, is_package: bool) -> ModuleScan:
        """What :func:`modpack.discovery.source.scan_source` says."""
        if not self._is_usable:
            return scan_source(source, module, is_package)
        file = self._file(source, module, is_package)
        known = _read(file)
        if known is not None:
            return known
        scan = scan_source(source, module, is_package)
        self._write(file, scan)
        return scan

    def _file(self, source: bytes, module: str, is_package: bool) -> Path:
        key = hashlib.blake2b(_scanner(), digest_size=20)
        key.update(f"{module}\0{is_package:d}\0".encode("utf-8", "surrogatepass"))
        key.update(source)
        name = key.hexdigest()
        return self._folder / name[:2] / name[2:]

    def _write(self, file: Path, scan: ModuleScan) -> None:
        if not self._is_writable:
            return
        body = scan_to_json(scan)
        try:
            _put(file, _checksum(body) + body)
        except OSError as failure:
            self._is_writable = False
            _log.info("further scans are not kept (%s)", failure)


def _read(file: Path) -> ModuleScan | None:
    """An entry; None if there is none, or none that is whole."""
    try:
        content = file.read_bytes()
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
    here = Path(__file__).parent
    for file in (*sorted(here.glob("*.py")), here.parent / "core" / "imports.py"):
        digest.update(file.read_bytes())
    return digest.digest()
