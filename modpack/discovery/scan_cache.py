"""Scans of sources, kept on disk from one export to the next.

With each scan is kept whether its source is clean: that nothing in it looks like a secret. Secrets
themselves are not kept: they are found again each time.

A scan depends on the source's bytes, the module's path, Python's parser, and this room's sources.
Their digest names the entry, so an entry is never out of date, and two processes that write the
same entry write the same bytes. An entry begins with its checksum; one that was cut off or changed
is made again. A failure to parse is not kept: it may be for want of memory, or because of a limit
of this process.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import tempfile
from dataclasses import replace
from enum import Enum
from functools import cache
from itertools import starmap
from pathlib import Path
from typing import Final

from modpack._version import __version__
from modpack.core.cache_dir import cache_folder, make_private, require_trusted_path
from modpack.core.scan import (
    Body,
    BrokenImport,
    Definitions,
    DynamicImport,
    FileRead,
    FolderListing,
    ImportKind,
    ImportStatement,
    Initializer,
    ModuleScan,
    ReadKind,
    ScanFailure,
)
from modpack.discovery.import_scanner import scan_source
from modpack.discovery.secrets import TextKind, find_secrets
from modpack.discovery.walk import Scan

_log = logging.getLogger(__name__)
_LAYOUT = "v1"
_CHECKSUM = 16
"""Bytes of the checksum that an entry begins with."""
_KINDS: Final = {kind.value: kind for kind in ImportKind}
_READS: Final = {kind.value: kind for kind in ReadKind}


def remembering_scan() -> Scan:
    """Return :func:`.scan_source` with this user's cache, or alone if there is no home for one."""
    try:
        return ScanCache(cache_folder() / "scans" / _LAYOUT).scan
    except RuntimeError:
        return scan_source


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
            require_trusted_path(folder)
            _scanner()  # it has no files where modpack is in a zip
        except OSError as failure:
            self._is_usable = self._is_writable = False
            _log.info("scans are not kept (%s): each export reads all sources anew", failure)

    def scan(self, source: bytes, module: str, is_package: bool) -> ModuleScan:
        """What :func:`.scan_source` says of a module, and whether it is clean."""
        if not self._is_usable:
            return scan_source(source, module, is_package)
        file = self._file(source, module, is_package)
        known = _read(file)
        if known is not None:
            return known
        scan = scan_source(source, module, is_package)
        if find_secrets(source, TextKind.SOURCE):
            scan = replace(scan, is_clean=False, defined=scan.defined.without_values())
        else:
            scan = replace(scan, is_clean=True)
        self._write(file, scan)
        return scan

    def _file(self, source: bytes, module: str, is_package: bool) -> str:
        key = hashlib.blake2b(_scanner(), digest_size=20)
        key.update(f"{module}\0{is_package:d}\0".encode("utf-8", "surrogatepass"))
        key.update(source)
        name = key.hexdigest()
        # Few folders: in each of 256 new ones, making a file takes ext4 five times as long.
        return f"{self._folder}{os.sep}{name[:1]}{os.sep}{name[1:]}"

    def _write(self, file: str, scan: ModuleScan) -> None:
        if not self._is_writable or scan.failure is not None:
            return
        body = scan_to_json(scan)
        try:
            _put(Path(file), _checksum(body) + body)
        except OSError as failure:
            self._is_writable = False
            _log.info("further scans are not kept (%s)", failure)


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
    for file in (*sorted(here.glob("*.py")), core / "scan.py"):
        digest.update(file.read_bytes())
    return digest.digest()


def scan_to_json(scan: ModuleScan) -> bytes:
    """A scan as bytes; the same scan gives the same bytes."""
    return json.dumps(scan, default=_as_row, separators=(",", ":")).encode("ascii")


def _as_row(value: object) -> object:
    """What :mod:`json` knows in place of what it does not: of records, their fields' values."""
    if isinstance(value, frozenset):
        return sorted(value)
    return value.value if isinstance(value, Enum) else list(vars(value).values())


def scan_from_json(data: bytes) -> ModuleScan:
    """The scan that :func:`scan_to_json` made these bytes of.

    Not by the codec, which takes 2.5 times as long: exports with a warm scan cache read one scan
    for each module (benchmark row walk-sympy).

    Raises:
        ValueError, TypeError, LookupError: it made no such bytes.

    >>> scan = ModuleScan(bound=frozenset({"x"}), exported=("x",))
    >>> scan_from_json(scan_to_json(scan)) == scan
    True
    """
    imports, unreadable, astray, bound, binds_unseen, exported, failure, *row = json.loads(data)
    reads, listings, defined, is_clean = row
    bodies, settings, setters, called, is_dynamic, initializers = defined
    return ModuleScan(
        tuple(
            ImportStatement(module, tuple(names), _KINDS[kind], line, optional, tuple(asked))
            for module, names, kind, line, optional, asked in imports
        ),
        tuple(starmap(DynamicImport, unreadable)),
        tuple(starmap(BrokenImport, astray)),
        frozenset(bound),
        binds_unseen is True,
        None if exported is None else tuple(exported),
        None if failure is None else ScanFailure(*failure),
        tuple(FileRead(_READS[kind], *place) for kind, *place in reads),
        tuple(starmap(FolderListing, listings)),
        Definitions(
            {path: Body._make(body) for path, body in bodies.items()},
            settings,
            setters,
            called,
            is_dynamic,
            {path: Initializer._make(each) for path, each in initializers.items()},
        ),
        is_clean is True,
    )
