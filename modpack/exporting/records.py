"""The record of each module of a plan, and whether there is room for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from modpack.archive.layout import NameRegistry, is_internal, why_unsafe
from modpack.core.names import is_within, module_record
from modpack.core.plan import Note, NoteKind, PackagingErrorReason, Plan, Problem
from modpack.core.rules import Action
from modpack.discovery.walk import Walker


def interned_records(plan: Plan, walker: Walker) -> dict[str, str]:
    """The record of each interned module that has a source; the others are folders only."""
    return {
        module: module_record(module, walker.is_package(module))
        for module in plan.modules(Action.INTERN)
        if walker.has_source(module)
    }


def mocked_records(plan: Plan) -> dict[str, str]:
    """The record of each stand-in: a package's where the plan holds modules below it."""
    mocked = plan.modules(Action.MOCK)
    held = [*mocked, *plan.modules(Action.INTERN)]
    return {
        module: module_record(module, any(o != module and is_within(o, module) for o in held))
        for module in mocked
    }


def clashes(plan: Plan, walker: Walker, taken: Iterable[str]) -> Iterator[Problem]:
    """Modules whose record has the name of another record, for some file system at least.

    Args:
        plan: what will be written.
        walker: knows the sources.
        taken: the records that are there already: the saved resources.
    """
    registry = NameRegistry()
    for name in taken:
        registry.add(name)
    records = {**interned_records(plan, walker), **mocked_records(plan)}
    for module, record in records.items():
        reason = registry.add(record)
        if reason is not None:
            context = f"its record is {record}, but {reason}"
            chain = plan.graph.shortest_path(module)
            yield Problem(module, PackagingErrorReason.DUPLICATE_RECORD, context, None, chain)


def with_room(plan: Plan, walker: Walker, taken: Iterable[str]) -> Plan:
    """The plan without files whose records are taken: what the user saved comes first.

    Args:
        plan: what will be written.
        walker: knows the sources.
        taken: the records that are there already: the saved resources.
    """
    registry = NameRegistry()
    saved = frozenset(taken)
    for name in (*saved, *interned_records(plan, walker).values(), *mocked_records(plan).values()):
        registry.add(name)
    files, notes = [], []
    for file in plan.files:
        if file.record in saved:
            continue
        if is_internal(file.record):
            reason: str | None = "that is a name which the archive format needs itself"
        else:
            reason = why_unsafe(file.record) or registry.add(file.record)
        if reason is None:
            files.append(file)
        else:
            text = f"{file.source} is left out: its record would be {file.record}, but {reason}"
            notes.append(Note(NoteKind.FILES_LEFT_OUT, file.owner, text))
    return replace(plan, files=tuple(files), notes=(*plan.notes, *notes))
