"""The plan as it is stored in a package, and back. The archive format page documents it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias, cast

from modpack.core.actions import Action
from modpack.core.globs import GlobGroup
from modpack.core.graph import DependencyGraph, Edge
from modpack.core.imports import ImportKind
from modpack.core.location import CodeKind, Location
from modpack.core.names import module_record
from modpack.core.plan import (
    Decision,
    FileKind,
    Note,
    NoteKind,
    Plan,
    PlannedDistribution,
    PlannedFile,
)
from modpack.core.rules import Origin, Rule
from modpack.core.usage import NameUse, UseKind

__all__ = ["GRAPH_VERSION", "Json", "plan_from_json", "plan_to_json"]

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
