"""Everything that a finished plan adds to the archive: sources, stand-ins, and records."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import replace

from modpack.archive import layout
from modpack.archive.writer import ArchiveWriter
from modpack.core.actions import Action
from modpack.core.garbage import collection_paused
from modpack.core.location import CodeKind
from modpack.core.names import module_record, package_folder, why_too_long
from modpack.core.plan import Plan
from modpack.core.planjson import Json, plan_to_json
from modpack.core.portabletext import folders_here, portable_text
from modpack.core.progress import Unit, phase
from modpack.core.tensors import tensors_to_json
from modpack.discovery.source import scan_source
from modpack.discovery.walk import Walker
from modpack.errors import ArchiveError
from modpack.archive.layout import RUNTIME_MODULE
from modpack.hermetic.mocks import mock_source, runtime_source
from modpack.packing.environment import environment_record
from modpack.packing.files import write_files
from modpack.packing.objects import ObjectSaver
from modpack.packing.records import interned_records, mocked_records
from modpack.planning.ownership import InstalledOwnership

__all__ = ["write_contents"]


@collection_paused()
def write_contents(
    plan: Plan,
    walker: Walker,
    writer: ArchiveWriter,
    objects: ObjectSaver,
    ownership: InstalledOwnership,
    namespace: str = "private",
) -> None:
    """Write what the plan decided: the code first, then the records about it.

    Args:
        plan: what was decided.
        walker: knows the sources.
        writer: where it goes.
        objects: what was saved.
        ownership: knows what is installed here.
        namespace: in which namespace the package works.
    """
    _refuse_endless_paths(plan, writer)
    _write_sources(plan, walker, writer)
    _write_mocks(plan, walker, writer)
    write_files(plan, walker, writer)
    objects.write_values()
    _write_empty_folders(plan, writer)
    externs = sorted({*plan.modules(Action.EXTERN), *_runtime_externs(writer)})
    writer.write(".data/extern_modules", ("\n".join(externs) + "\n").encode())
    writer.write(".data/python_version", platform.python_version().encode())
    writer.write(".data/version", b"6\n")
    writer.write("byteorder", sys.byteorder.encode())
    graph = plan_to_json(_without_folders(plan), _archive_places(plan, walker))
    writer.write(".data/modpack/graph.json", _json(graph), compress=True)
    writer.write(".data/modpack/environment.json", _json(environment_record(plan, ownership)))
    writer.write(".data/modpack/entry.json", _json(_entry(objects, namespace)))
    if objects.tensors:
        tensors = _json(tensors_to_json(objects.tensors))
        writer.write(".data/modpack/tensors.json", tensors, compress=True)


def _refuse_endless_paths(plan: Plan, writer: ArchiveWriter) -> None:
    """Refuse to record what no reader takes for a module path.

    Raises:
        ArchiveError: code imports something of such a path.
    """
    for module in plan.graph.nodes():
        why = None if module.startswith("<") else why_too_long(module)
        if why is not None:
            reason = f"{module!r:.60} is imported, which is too long for a module path: {why}"
            remedy = "Remedy: take that import out, or mock or extern the module that has it"
            raise ArchiveError(writer.source, f"{reason}. {remedy}", layout.GRAPH)


def _write_sources(plan: Plan, walker: Walker, writer: ArchiveWriter) -> None:
    records = interned_records(plan, walker)
    with phase("writing sources", Unit.MODULES, len(records), is_major=True) as writing:
        for module, record in records.items():
            writer.write(record, walker.source(module), compress=True)
            writing.advance()


def _write_empty_folders(plan: Plan, writer: ArchiveWriter) -> None:
    """Write an empty ``__init__.py`` for each interned folder without any record in it.

    A package has no other way to record that such a folder can be imported. A module that another
    one makes when it is imported may look like a folder, but is searched for nowhere.
    """
    names = writer.names()
    for module in plan.modules(Action.INTERN):
        location = plan.decisions[module].location
        if location is not None and location.kind is CodeKind.NAMESPACE and location.search:
            if not any(name.startswith(package_folder(module) + "/") for name in names):
                writer.write(module_record(module, True), b"")


def _write_mocks(plan: Plan, walker: Walker, writer: ArchiveWriter) -> None:
    records = mocked_records(plan)
    held = [*records, *plan.modules(Action.INTERN)]
    for module, record in records.items():
        below = [other for other in held if other.rpartition(".")[0] == module]
        submodules = [other.rpartition(".")[2] for other in below]
        why = plan.decisions[module].why
        source = mock_source(module, why, plan.why(module), submodules)
        writer.write(record, source.encode(), compress=True)
    if records or RUNTIME_MODULE in walker.graph:
        writer.write(module_record(RUNTIME_MODULE, False), runtime_source().encode(), compress=True)


def _runtime_externs(writer: ArchiveWriter) -> set[str]:
    """What the runtime of stand-ins imports: torch.package wants it declared."""
    if not writer.has(module_record(RUNTIME_MODULE, False)):
        return set()
    scan = scan_source(runtime_source(), RUNTIME_MODULE, False)
    return {statement.module for statement in scan.imports}


def _without_folders(plan: Plan) -> Plan:
    """The plan with notes that do not tell where its files lie on this machine."""
    folders = folders_here()
    notes = tuple(replace(n, text=portable_text(n.text, folders)) for n in plan.notes)
    return replace(plan, notes=notes)


def _archive_places(plan: Plan, walker: Walker) -> Mapping[str, str]:
    """For places in files of this machine, the same places in the archive's records."""
    places: dict[str, str] = {}
    files = {
        location.file: module_record(module, location.is_package)
        for module in walker.graph.nodes()
        for location in [walker.locate(module) if not module.startswith("<") else None]
        if location is not None and location.file
    }
    for note in plan.notes:
        if note.place:
            file, _, line = note.place.rpartition(":")
            places[note.place] = f"{files.get(file, file.rpartition('/')[2])}:{line}"
    return places


def _entry(objects: ObjectSaver, namespace: str) -> dict[str, Json]:
    entry: dict[str, Json] = {
        "pickles": [[package, resource] for package, resource in objects.resources],
        "main": list(objects.main) if objects.main else None,
    }
    return entry if namespace == "private" else {**entry, "namespace": namespace}


def _json(record: Mapping[str, Json]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
