"""Scans of modules as JSON, for the cache: positions instead of keys, since there are many."""

from __future__ import annotations

import json
from typing import TypeAlias, cast

from modpack.core.defined import Body, Defined, Initializer, Literal, Row
from modpack.core.imports import (
    AstrayImport,
    FileRead,
    FolderListing,
    ImportKind,
    ImportStatement,
    ModuleScan,
    ReadKind,
    ScanFailure,
    UnreadableImport,
)

__all__ = ["scan_from_json", "scan_to_json"]

_Rows: TypeAlias = tuple[
    list[tuple[str, list[str], str, int, bool, list[str]]],
    list[tuple[str, int, bool]],
    list[tuple[str, int]],
    tuple[list[str], bool],
    list[str] | None,
    tuple[str, int | None] | None,
    list[tuple[str, str, int, str | None]],
    list[tuple[str, bool, int, str | None]],
    "_DefinedRow",
    bool,
]
_BodyRow: TypeAlias = tuple[
    int,
    list[str],
    dict[str, int],
    dict[str, tuple[int, Literal]],
    dict[str, list[Row]],
    list[str],
    list[str],
]
_InitializerRow: TypeAlias = tuple[
    list[tuple[str, Literal]], dict[str, tuple[str, Literal]], dict[str, int]
]
_DefinedRow: TypeAlias = tuple[
    dict[str, _BodyRow],
    dict[str, _InitializerRow],
    dict[str, int],
    dict[str, list[str]],
    list[str],
    bool,
]
_KINDS = {kind.value: kind for kind in ImportKind}
_READS = {kind.value: kind for kind in ReadKind}


def scan_to_json(scan: ModuleScan) -> bytes:
    """A scan as bytes; the same scan gives the same bytes."""
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
        _row_of(scan.defined),
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
        defined=_defined(defined),
    )


def _row_of(defined: Defined) -> _DefinedRow:
    made = (defined.bodies, defined.initializers)
    bodies, initializers = ({p: tuple(e) for p, e in each.items()} for each in made)
    settings, setters = dict(defined.settings), dict(defined.setters)
    row = (bodies, initializers, settings, setters, list(defined.called), defined.is_dynamic)
    return cast(_DefinedRow, row)


def _defined(row: _DefinedRow) -> Defined:
    bodies, initializers, settings, setters, called, is_dynamic = row
    return Defined(
        {path: Body._make(body) for path, body in bodies.items()},
        settings,
        setters,
        called,
        is_dynamic,
        {path: Initializer._make(each) for path, each in initializers.items()},
    )
