"""A disk cache of source scans, shared by exports.

An entry also records whether a secret scan of the source found nothing. Secrets are never cached:
each export finds them again.

The key is a digest of the source, the module path, the Python version, and the scanner's own
sources, so entries never become stale and concurrent writers write the same bytes. Each entry
starts with a checksum; a truncated or modified entry is regenerated. Parse failures are not cached:
they may be due to memory or another limit of this process.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from dataclasses import replace
from functools import cache
from itertools import starmap
from pathlib import Path
from typing import Final

from modpack._version import __version__
from modpack.core.cache_dir import cache_folder, make_private, replace_file, require_trusted_path
from modpack.core.scan import (
    DynamicImport,
    FileName,
    ImportKind,
    ImportStatement,
    ModuleScan,
    ScanFailure,
)
from modpack.discovery.import_scanner import scan_source
from modpack.discovery.secrets import find_secrets
from modpack.discovery.walk import Scan

_log = logging.getLogger(__name__)
_LAYOUT = "v1"
_CHECKSUM = 16
"""Size in bytes of the checksum at the start of an entry."""
_KINDS: Final = {kind.value: kind for kind in ImportKind}


def cached_scan() -> Scan:
    """Return :func:`.scan_source` with this user's cache, or uncached without a home directory."""
    try:
        return ScanCache(cache_folder() / "scans" / _LAYOUT).scan
    except RuntimeError:
        return scan_source


class ScanCache:
    """A cache of scans in a folder.

    Args:
        folder: Private folder for the entries, created if missing. If it is unusable, sources are
            scanned without a cache.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_usable = self._is_writable = True
        try:
            make_private(folder)
            require_trusted_path(folder)
            _scanner_digest()  # fails if modpack itself is in a zip archive
        except OSError as failure:
            self._is_usable = self._is_writable = False
            _log.info("scans are not cached (%s); each export scans all sources again", failure)

    def scan(self, source: bytes, module: str, is_package: bool) -> ModuleScan:
        """Return the scan of a source, with ``is_clean`` set."""
        if not self._is_usable:
            return scan_source(source, module, is_package)
        file = self._path(source, module, is_package)
        cached = _read_entry(file)
        if cached is not None:
            return cached
        scan = scan_source(source, module, is_package)
        scan = replace(scan, is_clean=not find_secrets(source))
        self._write(file, scan)
        return scan

    def _path(self, source: bytes, module: str, is_package: bool) -> str:
        key = hashlib.blake2b(_scanner_digest(), digest_size=20)
        # Relative imports depend on the module path, and on whether the module is a package.
        key.update(f"{module}\0{is_package:d}\0".encode("utf-8", "surrogatepass"))
        key.update(source)
        name = key.hexdigest()
        # Use 16 folders: creating the files in 256 new folders takes ext4 five times as long.
        return f"{self._folder}{os.sep}{name[:1]}{os.sep}{name[1:]}"

    def _write(self, file: str, scan: ModuleScan) -> None:
        if not self._is_writable or scan.failure is not None:
            return
        body = scan_to_json(scan)
        try:
            content, path = _checksum(body) + body, Path(file)
            try:
                replace_file(path, content, 0o600)
            except FileNotFoundError:
                # Only the first entry of a folder has to create it.
                path.parent.mkdir(mode=0o700, exist_ok=True)
                replace_file(path, content, 0o600)
        except OSError as failure:
            self._is_writable = False
            _log.info("no more scans are cached (%s)", failure)


def _read_entry(file: str) -> ModuleScan | None:
    """Return an entry; None if it is missing or damaged."""
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
    except (ValueError, TypeError, LookupError):  # intact, but in another layout
        return None


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECKSUM).digest()


@cache
def _scanner_digest() -> bytes:
    """Return a digest of the scanner: Python's version and the sources of this package."""
    digest = hashlib.blake2b(f"{sys.version}\0{__version__}".encode(), digest_size=20)
    here, core = Path(__file__).parent, Path(__file__).parents[1] / "core"
    for file in (*sorted(here.glob("*.py")), core / "scan.py"):
        digest.update(file.read_bytes())
    return digest.digest()


def scan_to_json(scan: ModuleScan) -> bytes:
    """Serialize a scan deterministically."""
    return json.dumps(scan, default=_to_json, separators=(",", ":")).encode("ascii")


def _to_json(value: object) -> object:
    """Convert sets to lists, and the scan to a list. The records in it are tuples."""
    return sorted(value) if isinstance(value, frozenset) else list(vars(value).values())


def scan_from_json(data: bytes) -> ModuleScan:
    """Read a scan that :func:`scan_to_json` wrote.

    This does not use the codec, which takes 2.5 times as long: exports with a warm scan cache read
    one scan for each module (benchmark row walk-sympy).

    Raises:
        ValueError: If the data is not valid JSON, or a value is invalid.
        TypeError: If a value has the wrong type.
        LookupError: If a value is missing or unknown.

    >>> scan = ModuleScan(bound=frozenset({"x"}), exported=("x",))
    >>> scan_from_json(scan_to_json(scan)) == scan
    True
    """
    imports, unreadable, *row = json.loads(data)
    bound, exported, failure, file_names, listed, is_clean = row
    return ModuleScan(
        tuple(
            ImportStatement(module, tuple(names), _KINDS[kind], line, optional)
            for module, names, kind, line, optional in imports
        ),
        tuple(starmap(DynamicImport, unreadable)),
        frozenset(bound),
        None if exported is None else tuple(exported),
        None if failure is None else ScanFailure(*failure),
        tuple(starmap(FileName, file_names)),
        listed is True,
        is_clean is True,
    )
