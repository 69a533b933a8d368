"""Scans of modules as JSON, for the cache: positions instead of keys, since there are many."""

from __future__ import annotations

import json
from typing import TypeAlias, cast

from modpack.core.imports import (
    FileRead,
    ImportKind,
    ImportStatement,
    ModuleScan,
    ReadKind,
    ScanFailure,
    UnreadableImport,
)

__all__ = ["scan_from_json", "scan_to_json"]

_Rows: TypeAlias = tuple[
    list[tuple[str, list[str], str, int]],
    list[tuple[str, int, bool]],
    list[str],
    list[str] | None,
    tuple[str, int | None] | None,
    list[tuple[str, str, int, str | None]],
    bool,
]
_KINDS = {kind.value: kind for kind in ImportKind}
_READS = {kind.value: kind for kind in ReadKind}


def scan_to_json(scan: ModuleScan) -> bytes:
    """A scan as bytes; the same scan gives the same bytes."""
    rows: _Rows = (
        [(i.module, list(i.names), i.kind.value, i.line) for i in scan.imports],
        [(u.call, u.line, u.guarded) for u in scan.unreadable],
        sorted(scan.bound),
        None if scan.exported is None else list(scan.exported),
        None if scan.failure is None else (scan.failure.reason, scan.failure.line),
        [(r.kind.value, r.path, r.line, r.module) for r in scan.reads],
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
    imports, unreadable, bound, exported, failure, reads, clean = cast(_Rows, json.loads(data))
    return ModuleScan(
        imports=tuple(
            ImportStatement(module, tuple(names), _KINDS[kind], line)
            for module, names, kind, line in imports
        ),
        unreadable=tuple(UnreadableImport(*row) for row in unreadable),
        bound=frozenset(bound),
        exported=None if exported is None else tuple(exported),
        failure=None if failure is None else ScanFailure(*failure),
        reads=tuple(FileRead(_READS[row[0]], *row[1:]) for row in reads),
        is_clean=clean is True,
    )
