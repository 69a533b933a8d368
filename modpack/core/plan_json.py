"""The plan as a package stores it, and back; the archive format page documents the record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from modpack.core.codec import ModulePath, from_json, json_keys, to_json
from modpack.core.graph import CodeKind, DependencyGraph, Edge, Location, Node
from modpack.core.json_values import Json
from modpack.core.names import GlobGroup, module_record
from modpack.core.plan import (
    Decision,
    FileKind,
    MockUse,
    Note,
    Plan,
    PlannedDistribution,
    PlannedFile,
)
from modpack.core.rules import Action, Rule, RuleOrigin

GRAPH_VERSION = 1
"""Raise it when a reader of the old version would misunderstand what is written."""


@json_keys(optional=("hooks", "overridden_by", "code", "package"))
class _DecisionEntry(NamedTuple):
    action: Action
    rule: str
    origin: RuleOrigin
    hooks: tuple[str, ...] = ()
    overridden_by: str | None = None
    code: CodeKind | None = None
    package: bool = False


class _FileEntry(NamedTuple):
    owner: str
    why: str
    kind: FileKind


def plan_to_json(plan: Plan, places: Mapping[str, str]) -> dict[str, Json]:
    """What a package records about how it came to be.

    Args:
        plan: the plan that was carried out.
        places: where notes show, as module path and line instead of a path of this machine.
    """
    notes = (replace(n, place=n.place and places.get(n.place, n.place)) for n in plan.notes)
    files = {f.record: _FileEntry(f.owner, f.why, f.kind) for f in plan.files}
    return {
        "version": GRAPH_VERSION,
        "modules": {m: _decision(d) for m, d in sorted(plan.decisions.items())},
        "roots": list(plan.graph.roots()),
        "edges": [_edge(edge) for edge in plan.graph.edges()],
        "notes": to_json(tuple(notes)),
        "files": to_json(files),
        "distributions": to_json(plan.distributions),
        **({"uses": to_json(plan.uses, as_row=True)} if plan.tells_uses else {}),
    }


def plan_from_json(record: Mapping[str, Json]) -> Plan:
    """Read back what :func:`plan_to_json` wrote. Older packages have no files and no uses.

    Raises:
        KeyError, TypeError: it is not what this version writes.
    """
    graph = DependencyGraph()
    for root in from_json(tuple[Node, ...], record["roots"], "roots"):
        graph.mark_root(root)
    for edge in from_json(tuple[Edge, ...], record["edges"], "edges", as_row=True):
        graph.add_edge(edge)
    decisions = from_json(dict[ModulePath, _DecisionEntry], record["modules"], "modules")
    files = from_json(dict[str, _FileEntry], record.get("files", {}), "files")
    listed = record.get("distributions", [])
    return Plan(
        {module: _read_decision(module, entry) for module, entry in decisions.items()},
        notes=from_json(tuple[Note, ...], record["notes"], "notes"),
        graph=graph,
        files=tuple(PlannedFile(name, "", *entry) for name, entry in files.items()),
        distributions=from_json(tuple[PlannedDistribution, ...], listed, "distributions"),
        uses=from_json(tuple[MockUse, ...], record.get("uses", []), "uses", as_row=True),
        tells_uses="uses" in record,
    )


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


def _read_decision(module: str, entry: _DecisionEntry) -> Decision:
    rule = Rule(entry.action, GlobGroup(module), origin=entry.origin, label=entry.rule)
    location = None
    if entry.code is not None:
        interned = entry.action is Action.INTERN and entry.code is CodeKind.SOURCE
        file = module_record(module, entry.package) if interned else None
        location = Location(module, entry.code, file, entry.package)
    return Decision(module, entry.action, rule, location, entry.overridden_by, entry.hooks)


def _edge(edge: Edge) -> Json:
    names: list[Json] = list(edge.names)
    return [edge.importer, edge.imported, edge.kind.value, edge.line, names]
