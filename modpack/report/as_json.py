"""Facts as JSON. The command line's reference page documents every key.

Keys are only ever added under one schema number; a change that could mislead a reader of the
present one raises :data:`SCHEMA`.
"""

from __future__ import annotations

import json

from modpack.core.hookspec import hook_to_json
from modpack.core.plan import Note, Problem
from modpack.core.planjson import Json
from modpack.report.facts import (
    ImporterFacts,
    ModuleFacts,
    PackageFacts,
    PlanFacts,
    ResourceFacts,
)

__all__ = ["SCHEMA", "dumps", "error_document", "package_document", "plan_document"]

SCHEMA = 1


def package_document(facts: PackageFacts) -> dict[str, Json]:
    """A package: ``package``, ``modules``, ``problems`` (none), ``notes``."""
    return _document(_package(facts), PlanFacts(facts.modules, (), facts.notes, _files(facts)))


def plan_document(facts: PlanFacts) -> dict[str, Json]:
    """A plan: the same keys; ``package`` is null, because nothing was written."""
    return _document(None, facts)


def error_document(kind: str, message: str, **more: Json) -> dict[str, Json]:
    """What stands in place of facts when there are none.

    Args:
        kind: the error's class.
        message: what is wrong, for people.
        more: further keys.
    """
    return {"schema": SCHEMA, "error": {"type": kind, "message": message, **more}}


def dumps(document: dict[str, Json]) -> str:
    """JSON text, in ASCII, ending with a newline."""
    return json.dumps(document, indent=2) + "\n"


def _document(package: Json, plan: PlanFacts) -> dict[str, Json]:
    return {
        "schema": SCHEMA,
        "package": package,
        "modules": [_module(module) for module in plan.modules],
        "problems": [_problem(problem) for problem in plan.problems],
        "notes": [_note(note) for note in plan.notes],
        "files": [_resource(file) for file in plan.files],
    }


def _files(facts: PackageFacts) -> tuple[ResourceFacts, ...]:
    return tuple(resource for resource in facts.resources if resource.kind.goes_along)


def _package(facts: PackageFacts) -> Json:
    return {
        "file": facts.file,
        "size_bytes": facts.size_bytes,
        "format": facts.format,
        "digest": facts.digest,
        "writer": facts.writer,
        "python": facts.python,
        "torch": facts.torch,
        "platform": facts.platform,
        "entry": None
        if facts.entry is None
        else {"package": facts.entry[0], "resource": facts.entry[1]},
        "namespace": facts.namespace,
        "trial": facts.trial.to_json() if facts.trial is not None else None,
        "resources": [_resource(resource) for resource in facts.resources],
        "hooks": [{"resource": each.resource, **hook_to_json(each.spec)} for each in facts.hooks],
        "storages": {"count": facts.storages.count, "size_bytes": facts.storages.size_bytes},
    }


def _module(facts: ModuleFacts) -> Json:
    return {
        "module": facts.module,
        "action": facts.action.value,
        "rule": facts.rule,
        "overridden_by": facts.overridden_by,
        "importers": [_importer(importer) for importer in facts.importers],
        "provided_by": facts.provided_by.value if facts.provided_by is not None else None,
        "distribution": facts.distribution,
        "version": facts.version,
        "record": facts.record,
        "size_bytes": facts.size_bytes,
    }


def _importer(facts: ImporterFacts) -> Json:
    return {
        "importer": facts.importer,
        "file": facts.file,
        "line": facts.line,
        "kind": facts.kind.value,
    }


def _resource(facts: ResourceFacts) -> Json:
    return {
        "record": facts.record,
        "kind": facts.kind.value,
        "size_bytes": facts.size_bytes,
        "owner": facts.owner,
    }


def _problem(problem: Problem) -> Json:
    return {
        "subject": problem.subject,
        "reason": problem.reason.name.lower(),
        "advice": problem.reason.value,
        "context": problem.context,
        "place": problem.place,
        "chain": list(problem.chain),
    }


def _note(note: Note) -> Json:
    return {
        "kind": note.kind.value,
        "subject": note.subject,
        "text": note.text,
        "place": note.place,
    }
