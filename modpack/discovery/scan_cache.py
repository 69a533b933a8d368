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
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from modpack._version import __version__
from modpack.core.cache_dir import cache_folder, make_private, refuse_strangers
from modpack.core.scan import (
    AstrayImport,
    Body,
    Defined,
    FileRead,
    FolderListing,
    ImportKind,
    ImportStatement,
    Initializer,
    ModuleScan,
    ReadKind,
    ScanFailure,
    UnreadableImport,
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

_DefinedRow: TypeAlias = tuple[
    dict[str, Sequence[Any]],
    dict[str, Sequence[Any]],
    dict[str, int],
    dict[str, Sequence[str]],
    list[str],
    bool,
]
_Rows: TypeAlias = tuple[
    list[tuple[str, list[str], str, int, bool, list[str]]],
    list[tuple[str, int, bool]],
    list[tuple[str, int]],
    tuple[list[str], bool],
    list[str] | None,
    tuple[str, int | None] | None,
    list[tuple[str, str, int, str | None]],
    list[tuple[str, bool, int, str | None]],
    _DefinedRow,
    bool,
]
"""A scan in positions instead of keys, since there are many."""


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
            refuse_strangers(folder)
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
    defined = scan.defined
    rows: _Rows = (
        [
            (i.module, list(i.names), i.kind.value, i.line, i.is_optional, list(i.asked))
            for i in scan.imports
        ],
        [(u.call, u.line, u.guarded) for u in scan.unreadable],
        [(a.statement, a.line) for a in scan.astray],
        (sorted(scan.bound), scan.binds_unseen),
        None if scan.exported is None else list(scan.exported),
        None if scan.failure is None else (scan.failure.reason, scan.failure.line),
        [(r.kind.value, r.path, r.line, r.module) for r in scan.reads],
        [(e.path, e.is_deep, e.line, e.module) for e in scan.listings],
        (
            dict(defined.bodies),
            dict(defined.initializers),
            dict(defined.settings),
            dict(defined.setters),
            list(defined.called),
            defined.is_dynamic,
        ),
        scan.is_clean,
    )
    return json.dumps(rows, separators=(",", ":")).encode("ascii")


def scan_from_json(data: bytes) -> ModuleScan:
    """The scan that :func:`scan_to_json` made these bytes of.

    Raises:
        ValueError, TypeError, LookupError: it made no such bytes.

    >>> scan = ModuleScan(bound=frozenset({"x"}), exported=("x",))
    >>> scan_from_json(scan_to_json(scan)) == scan
    True
    """
    rows = cast(_Rows, json.loads(data))
    imports, unreadable, astray, names, exported, failure, reads, listings, defined, clean = rows
    bound, binds_unseen = names
    bodies, initializers, settings, setters, called, is_dynamic = defined
    return ModuleScan(
        imports=tuple(
            ImportStatement(module, tuple(names), _KINDS[kind], line, optional, tuple(asked))
            for module, names, kind, line, optional, asked in imports
        ),
        unreadable=tuple(UnreadableImport(*row) for row in unreadable),
        astray=tuple(AstrayImport(*row) for row in astray),
        bound=frozenset(bound),
        binds_unseen=binds_unseen is True,
        exported=None if exported is None else tuple(exported),
        failure=None if failure is None else ScanFailure(*failure),
        reads=tuple(FileRead(_READS[row[0]], *row[1:]) for row in reads),
        listings=tuple(FolderListing(*row) for row in listings),
        is_clean=clean is True,
        defined=Defined(
            {path: Body._make(body) for path, body in bodies.items()},
            settings,
            setters,
            called,
            is_dynamic,
            {path: Initializer._make(each) for path, each in initializers.items()},
        ),
    )
