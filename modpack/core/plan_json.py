"""The plan as a package stores it, and back; the archive format page documents the record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from modpack.core.codec import ModulePath, from_json, json_keys, record_to_json, to_json
from modpack.core.graph import CodeKind, DependencyGraph, Edge, Location, Node
from modpack.core.json_values import Json
from modpack.core.names import GlobGroup, module_record
from modpack.core.plan import (
    Decision,
    FileKind,
    MockUse,
    Plan,
    PlannedDistribution,
    PlannedFile,
)
from modpack.core.rules import Action, Rule, RuleOrigin
from modpack.diagnostics import Diagnostic, diagnostic_codes

GRAPH_VERSION: Final = 2
"""Increment it when readers of the previous version would misread the record."""


@json_keys(optional=("hooks", "overridden_by", "code", "package"))
class _DecisionEntry(NamedTuple):
    action: Action
    rule: str
    origin: RuleOrigin
    hooks: tuple[str, ...] = ()
    overridden_by: str | None = None
    code: CodeKind | None = None
    package: bool | None = None


class _FileEntry(NamedTuple):
    owner: str
    why: str
    kind: FileKind


class _NoteEntry(NamedTuple):
    code: str
    subject: str
    message: str
    location: str | None
    hint: str


def plan_to_json(plan: Plan, locations: Mapping[str, str]) -> dict[str, Json]:
    """Return the record of a plan that a package contains.

    Args:
        plan: The plan of the package.
        locations: For locations on this machine, the record and line in the package.
    """
    notes = tuple(
        _NoteEntry(n.code, n.subject, n.message, location, n.hint)
        for n in plan.notes
        for location in [locations.get(n.location or "", n.location)]
    )
    # Without the source, which is a path on this machine.
    files = {f.record: _FileEntry(f.owner, f.why, f.kind) for f in plan.files}
    return {
        "version": GRAPH_VERSION,
        "modules": {m: _decision(d) for m, d in sorted(plan.decisions.items())},
        "roots": list(plan.graph.roots()),
        "edges": [_edge(edge) for edge in plan.graph.edges()],
        "notes": to_json(notes),
        "files": to_json(files),
        "distributions": to_json(plan.distributions),
        "uses": to_json(plan.mock_uses, as_row=True),
    }


def plan_from_json(record: Mapping[str, Json]) -> Plan:
    """Return the plan that :func:`plan_to_json` wrote.

    Raises:
        KeyError: If the record lacks a key.
        TypeError: If a value has the wrong type.
        ValueError: If a value is not allowed.
    """
    graph = DependencyGraph()
    for root in from_json(tuple[Node, ...], record["roots"], "roots"):
        graph.mark_root(root)
    for edge in from_json(tuple[Edge, ...], record["edges"], "edges", as_row=True):
        graph.add_edge(edge)
    decisions = from_json(dict[ModulePath, _DecisionEntry], record["modules"], "modules")
    files = from_json(dict[str, _FileEntry], record["files"], "files")
    # The record has no problems: a package is only written without any.
    listed = record["distributions"]
    return Plan(
        {module: _read_decision(module, entry) for module, entry in decisions.items()},
        notes=tuple(_read_notes(record)),
        graph=graph,
        files=tuple(PlannedFile(name, "", *entry) for name, entry in files.items()),
        distributions=from_json(tuple[PlannedDistribution, ...], listed, "distributions"),
        mock_uses=from_json(tuple[MockUse, ...], record["uses"], "uses", as_row=True),
    )


def _read_notes(record: Mapping[str, Json]) -> Iterator[Diagnostic]:
    known = diagnostic_codes("note")
    for entry in from_json(tuple[_NoteEntry, ...], record["notes"], "notes"):
        # Severity and hint of a note follow from its code, so a package cannot invent one.
        if entry.code not in known:
            raise ValueError(f"{entry.code!r:.60} is not the code of a note")
        yield Diagnostic.from_code(*entry[:4], hint=entry.hint)


def _decision(decision: Decision) -> Json:
    rule, location, hooks = decision.rule, decision.location, decision.hooks
    entry = _DecisionEntry(decision.action, str(rule), rule.origin, hooks, decision.overridden_by)
    if location is not None:
        entry = entry._replace(code=location.kind, package=location.is_package)
    return {key: value for key, value in record_to_json(entry).items() if value not in (None, [])}


def _read_decision(module: str, entry: _DecisionEntry) -> Decision:
    # The record has the text of the rule. Its pattern is not needed again.
    rule = Rule(entry.action, GlobGroup(module), origin=entry.origin, label=entry.rule)
    location = None
    if entry.code is not None:
        interned = entry.action is Action.INTERN and entry.code is CodeKind.SOURCE
        is_package = bool(entry.package)
        file = module_record(module, is_package) if interned else None
        location = Location(module, entry.code, file, is_package)
    return Decision(module, entry.action, rule, location, entry.overridden_by, entry.hooks)


def _edge(edge: Edge) -> Json:
    names: list[Json] = list(edge.names)
    return [edge.importer, edge.imported, edge.kind.value, edge.line, names]
