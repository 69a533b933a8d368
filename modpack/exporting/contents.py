"""Files that go along with the code, and the list of what the package holds of a distribution.

What a package records about where it was made: Python, the platform, what must be installed.

Everything that a finished plan adds to the archive: sources, stand-ins, and records.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.machinery import EXTENSION_SUFFIXES

from modpack._version import __version__
from modpack.archive import layout
from modpack.archive.layout import RUNTIME_MODULE, NameRegistry, why_unsafe
from modpack.archive.writer import ArchiveWriter
from modpack.core.environment import NativeTag, RecordedEnvironment, environment_to_json
from modpack.core.graph import CodeKind
from modpack.core.json_values import Json
from modpack.core.names import is_everywhere, module_record, package_folder, parents, why_too_long
from modpack.core.names import normalised_distribution as normalised
from modpack.core.plan import (
    FileKind,
    Note,
    NoteKind,
    Plan,
    PlannedDistribution,
    PlannedFile,
)
from modpack.core.plan_json import plan_to_json
from modpack.core.process import collection_paused
from modpack.core.progress import Unit, phase
from modpack.core.rules import Action
from modpack.core.tensors import tensors_to_json
from modpack.core.text import folders_here, portable_text
from modpack.discovery.distributions import Distribution
from modpack.discovery.import_scanner import scan_source
from modpack.discovery.walk import Walker
from modpack.errors import ArchiveError, ModpackError
from modpack.exporting.objects import ObjectSaver
from modpack.exporting.presets import InstalledOwnership
from modpack.exporting.records import interned_records, mocked_records
from modpack.loading.mock_source import mock_source, runtime_source


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
        reason = _why_impossible(file.record) or registry.add(file.record)
        if reason is None:
            files.append(file)
        else:
            text = f"{file.source} is left out: its record would be {file.record}, but {reason}"
            notes.append(Note(NoteKind.FILES_LEFT_OUT, file.owner, text))
    return replace(plan, files=tuple(files), notes=(*plan.notes, *notes))


def _why_impossible(record: str) -> str | None:
    if layout.is_internal(record):
        return "that is a name which the archive format needs itself"
    return why_unsafe(record)


def write_files(plan: Plan, walker: Walker, writer: ArchiveWriter) -> None:
    """Write the files of a plan, and a RECORD (PEP 376) of each distribution's part.

    Raises:
        ModpackError: a file cannot be read any more.
    """
    sources = interned_records(plan, walker)
    sums: dict[str, tuple[str, int]] = {}
    for file in plan.files:
        content = _read(file)
        sums[file.record] = _sum(content)
        writer.write(file.record, content, compress=True)
    for distribution in (each for each in plan.distributions if each.modules):
        for module in distribution.modules:
            if module in sources:
                sums[sources[module]] = _sum(walker.source(module))
        mine = {sources[m] for m in distribution.modules if m in sources}
        mine |= {file.record for file in plan.files if _is_of(file, distribution)}
        record = f"{distribution.folder}/RECORD"
        if not writer.has(record):
            writer.write(record, _listing(record, {r: sums[r] for r in mine}), compress=True)


def _read(file: PlannedFile) -> bytes:
    try:
        with open(file.source, "rb") as opened:  # noqa: PTH123 - there may be many
            return opened.read()
    except OSError as failure:
        raise ModpackError(f"{file.source} was to go along, but {failure.strerror}") from failure


def _is_of(file: PlannedFile, distribution: PlannedDistribution) -> bool:
    return file.owner == distribution.name or file.owner in distribution.modules


def _sum(content: bytes) -> tuple[str, int]:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}", len(content)


def _listing(own_record: str, sums: dict[str, tuple[str, int]]) -> bytes:
    lines = io.StringIO()
    table = csv.writer(lines, lineterminator="\n")
    table.writerows((record, *sums[record]) for record in sorted(sums))
    table.writerow((own_record, "", ""))
    return lines.getvalue().encode()


def environment_record(plan: Plan, ownership: InstalledOwnership) -> dict[str, Json]:
    """The record that a package holds; the archive format page documents it.

    Args:
        plan: what was decided.
        ownership: knows what is installed here.
    """
    return {
        **environment_to_json(_environment(plan, ownership)),
        "distributions": {d.name: d.version for d in plan.distributions},
    }


def _environment(plan: Plan, ownership: InstalledOwnership) -> RecordedEnvironment:
    providers = _providers(plan, ownership)
    torch = ownership.named("torch") if _torch_version() is not None else None
    needed = [*providers.values(), *filter(None, (torch, ownership.named("modpack")))]
    return RecordedEnvironment(
        platform.python_version(),
        platform.python_implementation(),
        sys.platform,
        platform.machine(),
        _torch_version(),
        {path: normalised(found.name) for path, found in providers.items()},
        ownership.recorded_closure(needed),
        _native(plan),
        modpack=__version__,
    )


def _providers(plan: Plan, ownership: InstalledOwnership) -> dict[str, Distribution]:
    """What provides the extern modules, by the shortest path of which it provides everything."""
    owners: dict[str, Distribution] = {}
    for module in plan.modules(Action.EXTERN):
        if not is_everywhere(module) and not _is_shared(module, plan):
            found = ownership.distribution_of(module, plan.decisions[module].location)
            if found is not None:
                owners[module] = found
    below = _owners_below(owners)
    return {_widest(module, below, plan): found for module, found in owners.items()}


def _owners_below(owners: Mapping[str, Distribution]) -> dict[str, set[Distribution]]:
    """For each module path, who provides something at it or below it."""
    below: dict[str, set[Distribution]] = {}
    for module, found in owners.items():
        for path in (module, *parents(module)):
            below.setdefault(path, set()).add(found)
    return below


def _widest(module: str, below: Mapping[str, set[Distribution]], plan: Plan) -> str:
    """The shortest path above a module that is its distribution's alone."""
    paths: Iterable[str] = reversed([module, *parents(module)])
    return next((p for p in paths if len(below[p]) == 1 and not _is_shared(p, plan)), module)


def _is_shared(path: str, plan: Plan) -> bool:
    """Whether it is a namespace package, in which any distribution may have a part."""
    decision = plan.decisions.get(path)
    location = decision.location if decision is not None else None
    return location is not None and location.kind is CodeKind.NAMESPACE


def _native(plan: Plan) -> NativeTag | None:
    """What the compiled modules that go along were built for."""
    compiled = [file.record for file in plan.files if file.kind is FileKind.COMPILED]
    suffixes = tuple(EXTENSION_SUFFIXES)
    modules = [record for record in compiled if record.endswith(suffixes)]
    return NativeTag.of(modules) if compiled else None


def _torch_version() -> str | None:
    """The version of the torch that is loaded; None if only sources were saved."""
    torch = sys.modules.get("torch")
    return str(torch.__version__) if torch is not None else None


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
