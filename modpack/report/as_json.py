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
    HookFacts,
    ImporterFacts,
    ModuleFacts,
    PackageFacts,
    PlanFacts,
    ResourceFacts,
)

__all__ = [
    "SCHEMA",
    "dumps",
    "error_document",
    "importer_to_json",
    "module_to_json",
    "note_to_json",
    "package_document",
    "package_to_json",
    "plan_document",
    "problem_to_json",
    "resource_to_json",
]

SCHEMA = 1


def package_document(facts: PackageFacts) -> dict[str, Json]:
    """A package: ``package``, ``modules``, ``problems`` (none), ``notes``."""
    plan = PlanFacts(facts.modules, (), facts.notes, _files(facts))
    return _document(package_to_json(facts), plan)


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
        "modules": [module_to_json(module) for module in plan.modules],
        "problems": [problem_to_json(problem) for problem in plan.problems],
        "notes": [note_to_json(note) for note in plan.notes],
        "files": [resource_to_json(file) for file in plan.files],
    }


def _files(facts: PackageFacts) -> tuple[ResourceFacts, ...]:
    return tuple(resource for resource in facts.resources if resource.kind.goes_along)


def package_to_json(facts: PackageFacts) -> Json:
    """What a package is, without its modules and notes."""
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
        "resources": [resource_to_json(resource) for resource in facts.resources],
        "hooks": list(map(_hook, facts.hooks)),
        "storages": {"count": facts.storages.count, "size_bytes": facts.storages.size_bytes},
    }


def _hook(facts: HookFacts) -> Json:
    shown = {"resource": facts.resource, **hook_to_json(facts.spec)}
    if facts.disagreement is not None:
        shown["disagreement"] = facts.disagreement
    return shown


def module_to_json(facts: ModuleFacts) -> Json:
    """A module, its decision, and who needs it."""
    return {
        "module": facts.module,
        "action": facts.action.value,
        "rule": facts.rule,
        "overridden_by": facts.overridden_by,
        "importers": [importer_to_json(importer) for importer in facts.importers],
        "provided_by": facts.provided_by.value if facts.provided_by is not None else None,
        "distribution": facts.distribution,
        "version": facts.version,
        "record": facts.record,
        "size_bytes": facts.size_bytes,
    }


def importer_to_json(facts: ImporterFacts) -> Json:
    """One piece of evidence that a module is needed."""
    return {
        "importer": facts.importer,
        "file": facts.file,
        "line": facts.line,
        "kind": facts.kind.value,
    }


def resource_to_json(facts: ResourceFacts) -> Json:
    """A record that is neither code nor a tensor storage."""
    return {
        "record": facts.record,
        "kind": facts.kind.value,
        "size_bytes": facts.size_bytes,
        "owner": facts.owner,
    }


def problem_to_json(problem: Problem) -> Json:
    """Something that stops a package from being written."""
    return {
        "subject": problem.subject,
        "reason": problem.reason.name.lower(),
        "advice": problem.reason.value,
        "context": problem.context,
        "place": problem.place,
        "chain": list(problem.chain),
    }


def note_to_json(note: Note) -> Json:
    """A hazard or remark."""
    return {
        "kind": note.kind.value,
        "subject": note.subject,
        "text": note.text,
        "place": note.place,
    }
