"""The plan as a package stores it, and scans as the scan cache does, and back.

The archive format page documents the plan's record. Scans are positions instead of keys, since
there are many.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TypeAlias, cast

from modpack.core.graph import CodeKind, DependencyGraph, Edge, Location
from modpack.core.names import GlobGroup, module_record
from modpack.core.plan import (
    Decision,
    FileKind,
    NameUse,
    Note,
    NoteKind,
    Plan,
    PlannedDistribution,
    PlannedFile,
    UseKind,
)
from modpack.core.rules import Action, Origin, Rule
from modpack.core.scan import (
    AstrayImport,
    Body,
    Defined,
    FileRead,
    FolderListing,
    ImportKind,
    ImportStatement,
    Initializer,
    Literal,
    ModuleScan,
    ReadKind,
    Row,
    ScanFailure,
    UnreadableImport,
)

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None

_EdgeRow: TypeAlias = tuple[str, str, str, int | None, list[str]]
_KINDS = {kind.value: kind for kind in ImportKind}

GRAPH_VERSION = 1
"""Raise it when a reader of the old version would misunderstand what is written."""


def plan_to_json(plan: Plan, places: Mapping[str, str]) -> dict[str, Json]:
    """What a package records about how it came to be.

    Args:
        plan: the plan that was carried out.
        places: where notes show, as module path and line instead of a path of this machine.
    """
    return {
        "version": GRAPH_VERSION,
        "modules": {m: _decision(d) for m, d in sorted(plan.decisions.items())},
        "roots": list(plan.graph.roots()),
        "edges": [_edge(edge) for edge in plan.graph.edges()],
        "notes": [
            {"kind": n.kind.value, "subject": n.subject, "text": n.text, "place": place}
            for n in plan.notes
            for place in [n.place and places.get(n.place, n.place)]
        ],
        "files": {f.record: _file(f) for f in plan.files},
        "distributions": [
            {
                "name": d.name,
                "version": d.version,
                "folder": d.folder,
                "modules": list(d.modules),
            }
            for d in plan.distributions
        ],
        **({"uses": [_use(use) for use in plan.uses]} if plan.tells_uses else {}),
    }


def plan_from_json(record: Mapping[str, Json]) -> Plan:
    """Read back what :func:`plan_to_json` wrote.

    Raises:
        KeyError, TypeError, ValueError: it is not what this version writes.
    """
    graph = DependencyGraph()
    for root in cast(list[str], record["roots"]):
        graph.mark_root(root)
    for importer, imported, kind, line, names in cast(list[_EdgeRow], record["edges"]):
        known = _KINDS.get(kind) or ImportKind(kind)  # a look-up in a table takes a fifth of this
        graph.add_edge(Edge(str(importer), str(imported), known, line, tuple(names)))
    modules = cast(dict[str, dict[str, str]], record["modules"])
    notes = cast(list[dict[str, str]], record["notes"])
    return Plan(
        {module: _read_decision(module, entry) for module, entry in modules.items()},
        notes=tuple(
            Note(NoteKind(n["kind"]), n["subject"], n["text"], n.get("place")) for n in notes
        ),
        graph=graph,
        files=tuple(_read_file(*each) for each in _mapping(record.get("files"))),
        distributions=tuple(map(_read_distribution, _listed(record.get("distributions")))),
        uses=tuple(map(_read_use, cast(list[list[Json]], record.get("uses", [])))),
        tells_uses="uses" in record,
    )


def _use(use: NameUse) -> Json:
    via: list[Json] = list(use.via)
    place: list[Json] = [use.module, use.name, use.importer, use.line]
    return [*place, use.kind.value, use.scope, use.is_live, via, use.is_called_later]


def _read_use(entry: list[Json]) -> NameUse:
    module, name, importer, line, kind, scope, is_live, via, is_called_later = entry
    return NameUse(
        cast(str, module),
        cast(str, name),
        cast(str, importer),
        cast(int, line),
        UseKind(cast(str, kind)),
        cast(str, scope),
        cast(bool, is_live),
        tuple(cast(list[str], via)),
        cast(bool, is_called_later),
    )


def _file(file: PlannedFile) -> Json:
    return {"owner": file.owner, "why": file.why, "kind": file.kind.value}


def _read_file(record: str, entry: Mapping[str, str]) -> PlannedFile:
    return PlannedFile(record, "", entry["owner"], entry["why"], FileKind(entry["kind"]))


def _read_distribution(entry: Mapping[str, str]) -> PlannedDistribution:
    modules = tuple(map(str, entry["modules"]))
    return PlannedDistribution(entry["name"], entry["version"], entry["folder"], modules)


def _mapping(value: Json) -> Iterable[tuple[str, Mapping[str, str]]]:
    """What older packages do not record."""
    return cast(dict[str, dict[str, str]], value or {}).items()


def _listed(value: Json) -> Iterable[Mapping[str, str]]:
    return cast(list[dict[str, str]], value or [])


def _decision(decision: Decision) -> Json:
    location = decision.location
    entry: dict[str, Json] = {
        "action": decision.action.value,
        "rule": str(decision.rule),
        "origin": decision.rule.origin.value,
    }
    if decision.hooks:
        entry["hooks"] = list(decision.hooks)
    if decision.overridden_by is not None:
        entry["overridden_by"] = decision.overridden_by
    if location is not None:
        entry["code"] = location.kind.value
        entry["package"] = location.is_package
    return entry


def _read_decision(module: str, entry: Mapping[str, str]) -> Decision:
    action = Action(entry["action"])
    rule = Rule(action, GlobGroup(module), origin=Origin(entry["origin"]), label=entry["rule"])
    location = None
    if "code" in entry:
        kind, is_package = CodeKind(entry["code"]), bool(entry["package"])
        interned = action is Action.INTERN and kind is CodeKind.SOURCE
        file = module_record(module, is_package) if interned else None
        location = Location(module, kind, file, is_package)
    hooks = tuple(map(str, entry.get("hooks", ())))
    return Decision(module, action, rule, location, entry.get("overridden_by"), hooks)


def _edge(edge: Edge) -> Json:
    names: list[Json] = list(edge.names)
    return [edge.importer, edge.imported, edge.kind.value, edge.line, names]


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
