"""The builder of one package, which repeats planning and writing for each self-test round.

A plan adds sources, mocks, files, and metadata to the records of the saved objects.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import platform
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

from modpack._version import __version__
from modpack.archive import layout
from modpack.archive.layout import NameRegistry, check_record_name, is_internal
from modpack.core.environment import NativeTag, RecordedEnvironment, environment_to_json
from modpack.core.graph import CodeKind
from modpack.core.json_values import Json, ascii_json
from modpack.core.names import (
    is_everywhere,
    module_record,
    normalized,
    package_folder,
    parents,
    why_too_long,
)
from modpack.core.plan import (
    EmptyMatchError,
    FileKind,
    MockUse,
    PackagingError,
    PackagingErrorReason,
    Plan,
)
from modpack.core.plan_json import plan_to_json
from modpack.core.process import ProgressUnit, gc_paused, phase
from modpack.core.rules import Action
from modpack.core.scan import ImportKind
from modpack.core.tensors import tensors_to_json
from modpack.core.text import local_folders, portable_text
from modpack.diagnostics import Diagnostic, Severity
from modpack.discovery.distributions import DistributionIndex, InstalledDistribution
from modpack.discovery.import_scanner import scan_source
from modpack.discovery.recorded_distributions import recorded_closure
from modpack.discovery.walk import Walker
from modpack.errors import ArchiveError, ModpackError
from modpack.exporting.edited_sources import edited_notes
from modpack.exporting.heavy_libraries import heavy_notes
from modpack.exporting.mock_source import mock_source, runtime_source
from modpack.exporting.module_records import interned_records, mocked_records
from modpack.exporting.objects import ObjectSaver
from modpack.exporting.planner import Planner
from modpack.exporting.secret_guard import SecretScan
from modpack.writing.writer import ArchiveWriter, Checkpoint

_BY_FUNCTION: Final = (ImportKind.DYNAMIC, ImportKind.LIVE_MODULE, ImportKind.SELF_TEST)
"""The evidence of imports that no import statement makes."""


@dataclass
class PackageBuilder:
    """Plans and writes the package of one exporter.

    Attributes:
        planner: Decides the contents of the package.
        writer: Writes the package.
        objects: The objects saved so far.
        installed: The installed distributions.
        secret_scan: Searches saved objects and planned files for secrets.
        debug: Whether errors show the import chain of each module.
        torch_settings: Settings of torch that the saved objects may depend on.
        start: The point to which :meth:`plan` and :meth:`write` roll back: everything is saved.
    """

    planner: Planner
    writer: ArchiveWriter
    objects: ObjectSaver
    installed: DistributionIndex
    secret_scan: SecretScan
    debug: bool
    torch_settings: dict[str, str] = field(default_factory=dict)
    start: Checkpoint | None = None
    _found_uses: tuple[object, tuple[MockUse, ...]] = (None, ())

    def preview(self) -> Plan:
        """Return the plan for everything saved so far, including all problems."""
        with phase("planning", is_major=True):
            plan, walker, scripts = self.planner.plan(), self.planner.walker, self.objects.scripts
            # A script's problems are those of its definitions. Locations in the generated modules
            # lead to the scripts, which the user can open.
            of_scripts = tuple(scripts.problems())
            problems = tuple(
                replace(problem, location=problem.location and scripts.place(problem.location))
                for problem in plan.problems
                if problem.subject != "__main__" or not of_scripts
            )
            notes = (*plan.notes, *edited_notes(plan, walker), *self.objects.notes(plan))
            plan = replace(plan, problems=(*problems, *of_scripts), notes=notes)
            # This leaves files out of the plan, so sizes and secrets are looked at afterwards.
            plan = _reject_clashing_records(plan, walker, self.writer.names())
            plan = replace(plan, notes=(*plan.notes, *heavy_notes(plan, walker)))
            with phase("looking for secrets"):
                data = self.planner.package_data
                found = tuple(self.secret_scan.findings(plan, walker, data, scripts.place))
            leaks = (each for each in found if each.severity is Severity.ERROR)
            published = (each for each in found if each.severity is not Severity.ERROR)
            problems, notes = (*plan.problems, *leaks), (*plan.notes, *published)
            return replace(plan, problems=problems, notes=notes)

    def plan(self) -> Plan:
        """Return the plan for everything saved so far, and roll back what :meth:`write` wrote.

        Raises:
            PackagingError: If the plan has problems.
        """
        self._rollback()
        plan = self.preview()
        if plan.problems:
            only_empty = all(p.code == PackagingErrorReason.EMPTY_MATCH for p in plan.problems)
            raise (EmptyMatchError if only_empty else PackagingError)(plan.problems, self.debug)
        mocked = plan.modules(Action.MOCK)
        return replace(plan, mock_uses=self._uses(plan, mocked) if mocked else ())

    def _uses(self, plan: Plan, mocked: list[str]) -> tuple[MockUse, ...]:
        from modpack.discovery.mock_usage import find_uses

        walker = self.planner.walker
        with phase("looking for uses of mocked modules"):
            sources = {
                module: (walker.source(module), walker.is_package(module))
                for module in interned_records(plan, walker)
            }
            inputs = (sources, mocked, plan.graph.roots(), list(plan.graph.edges()))
            if self._found_uses[0] != inputs:  # most self-test rounds change only data files
                self._found_uses = inputs, find_uses(sources, mocked, plan.graph)
            return self._found_uses[1]

    @gc_paused()
    def write(self, plan: Plan, namespace: str = "private") -> None:
        """Write everything that the plan adds to the saved objects, replacing an earlier plan.

        The code comes first, then the metadata records.

        Args:
            plan: The plan.
            namespace: The namespace that the package requires.

        Raises:
            ArchiveError: If code imports a module whose path is too long.
            ModpackError: If a file can no longer be read.
        """
        self._rollback()
        walker, writer, objects = self.planner.walker, self.writer, self.objects
        for module in plan.graph.nodes():
            why = None if module.startswith("<") else why_too_long(module)
            if why is not None:  # readers reject longer module paths
                raise ArchiveError(
                    writer.path,
                    f"the imported name {module!r:.60} is too long for a module path: {why}",
                    layout.GRAPH,
                    hint="Remove that import, or mock or extern the module that contains it.",
                )
        sources = interned_records(plan, walker)
        with phase("writing sources", ProgressUnit.MODULES, len(sources), is_major=True) as writing:
            for module, record in sources.items():
                writer.write(record, walker.source(module), compress=True)
                writing.advance()
        externs = {*plan.modules(Action.EXTERN), *_write_mocks(plan, walker, writer)}
        _write_files(plan, walker, writer, sources)
        objects.write_values()
        # torch.package finds no files by path and no metadata of distributions, and there,
        # importlib.import_module finds the modules of the loading environment.
        packaged = {*plan.modules(Action.INTERN), *plan.modules(Action.MOCK)}
        by_function = (edge.imported for edge in plan.graph.edges() if edge.kind in _BY_FUNCTION)
        needs_modpack = objects.needs_modpack or plan.files or plan.distributions
        if namespace != "private" or needs_modpack or any(m in packaged for m in by_function):
            externs.add(layout.MODPACK_ONLY)
            writer.write(layout.NOTICE, b"")
        # After all other code and files: it depends on which folders have a record.
        _write_empty_folders(plan, writer)
        writer.write(layout.EXTERN_MODULES, ("\n".join(sorted(externs)) + "\n").encode())
        writer.write(layout.PYTHON_VERSION, platform.python_version().encode())
        # The version of the archive layout, which torch's reader checks.
        writer.write(layout.VERSION, b"6\n")
        writer.write(layout.BYTEORDER, sys.byteorder.encode())
        self._write_metadata(plan, namespace)

    def _write_metadata(self, plan: Plan, namespace: str) -> None:
        objects, walker, writer = self.objects, self.planner.walker, self.writer
        folders = local_folders()  # removed from texts, because they reveal paths of this machine
        notes = tuple(
            replace(
                note,
                message=portable_text(note.message, folders),
                hint=portable_text(note.hint, folders),
            )
            for note in plan.notes
        )
        graph = plan_to_json(replace(plan, notes=notes), _record_locations(plan, walker))
        entry: dict[str, Json] = {
            "pickles": [[package, resource] for package, resource in objects.resources],
            "main": list(objects.main) if objects.main else None,
        }
        if namespace != "private":
            entry["namespace"] = namespace
        writer.write(layout.GRAPH, ascii_json(graph), compress=True)
        environment = _environment_record(plan, self.installed, self.torch_settings)
        writer.write(layout.ENVIRONMENT, ascii_json(environment))
        writer.write(layout.ENTRY, ascii_json(entry))
        if objects.tensors:
            tensors = ascii_json(tensors_to_json(objects.tensors))
            writer.write(layout.TENSORS, tensors, compress=True)

    def _rollback(self) -> None:
        if self.start is not None:
            self.writer.rollback(self.start)


def _reject_clashing_records(plan: Plan, walker: Walker, taken: Collection[str]) -> Plan:
    """Return the plan with a problem for each module, and without each file, whose record exists.

    Names also clash if any file system treats them as equal. Saved resources take precedence.

    Args:
        plan: The plan.
        walker: Provides the sources.
        taken: The records of the saved resources.
    """
    registry = NameRegistry()
    saved = frozenset(taken)
    for name in taken:
        registry.add(name)
    problems, files, notes = list(plan.problems), [], list(plan.notes)
    for module, record in (interned_records(plan, walker) | mocked_records(plan)).items():
        reason = registry.add(record)
        if reason is not None:
            text = f"{module!r} would be stored as {record}, but {reason}"
            chain = plan.graph.shortest_path(module)
            duplicate = PackagingErrorReason.DUPLICATE_RECORD
            problems.append(Diagnostic.from_code(duplicate, module, text, chain=chain))
    for file in plan.files:
        if file.record in saved:
            continue
        if is_internal(file.record):
            reason = "the archive format reserves that name"
        else:
            reason = check_record_name(file.record) or registry.add(file.record)
        if reason is None:
            files.append(file)
        else:
            text = f"{file.source} is excluded: its record would be {file.record}, but {reason}"
            notes.append(Diagnostic.from_code("data-files-excluded", file.owner, text))
    return replace(plan, problems=tuple(problems), files=tuple(files), notes=tuple(notes))


def _write_mocks(plan: Plan, walker: Walker, writer: ArchiveWriter) -> set[str]:
    """Write the mocks and return the imports of their runtime, which torch.package must list."""
    records = mocked_records(plan)
    planned = [*records, *plan.modules(Action.INTERN)]
    for module, record in records.items():
        submodules = [o.rpartition(".")[2] for o in planned if o.rpartition(".")[0] == module]
        source = mock_source(module, plan.decisions[module].why, plan.why(module), submodules)
        writer.write(record, source.encode(), compress=True)
    runtime_record = module_record(layout.RUNTIME_MODULE, False)
    if records or layout.RUNTIME_MODULE in walker.graph:
        writer.write(runtime_record, runtime_source().encode(), compress=True)
    if not writer.has(runtime_record):
        return set()
    scan = scan_source(runtime_source(), layout.RUNTIME_MODULE, False)
    return {statement.module for statement in scan.imports}


def _write_files(
    plan: Plan, walker: Walker, writer: ArchiveWriter, sources: Mapping[str, str]
) -> None:
    """Write the files of a plan, and a RECORD file (PEP 376) for each included distribution."""
    digests: dict[str, tuple[str, int]] = {}
    for file in plan.files:
        try:
            content = Path(file.source).read_bytes()
        except OSError as failure:
            raise ModpackError(f"cannot read {file.source}: {failure.strerror}") from failure
        digests[file.record] = _record_digest(content)
        writer.write(file.record, content, compress=True)
    for distribution in (each for each in plan.distributions if each.modules):
        own_records = {
            file.record
            for file in plan.files
            if file.owner in (distribution.name, *distribution.modules)
        }
        for module in distribution.modules:
            if module in sources:
                own_records.add(sources[module])
                digests[sources[module]] = _record_digest(walker.source(module))
        listing = f"{distribution.folder}/RECORD"
        if not writer.has(listing):
            lines = io.StringIO()
            table = csv.writer(lines, lineterminator="\n")
            table.writerows((record, *digests[record]) for record in sorted(own_records))
            # RECORD lists itself without a digest (PEP 376).
            table.writerow((listing, "", ""))
            writer.write(listing, lines.getvalue().encode(), compress=True)


def _record_digest(content: bytes) -> tuple[str, int]:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}", len(content)


def _write_empty_folders(plan: Plan, writer: ArchiveWriter) -> None:
    """Write an empty ``__init__.py`` for each interned folder without any record.

    A package has no other way to record that such a folder can be imported. Modules that other code
    creates at import may look like folders, but have no search path.
    """
    names = writer.names()
    for module in plan.modules(Action.INTERN):
        location = plan.decisions[module].location
        if location is not None and location.kind is CodeKind.NAMESPACE and location.search:
            if not any(name.startswith(package_folder(module) + "/") for name in names):
                writer.write(module_record(module, True), b"")


def _record_locations(plan: Plan, walker: Walker) -> Mapping[str, str]:
    """Map locations in files of this machine to locations in records."""
    places: dict[str, str] = {}
    files = {
        location.file: module_record(module, location.is_package)
        for module in walker.graph.nodes()
        for location in [walker.locate(module) if not module.startswith("<") else None]
        if location is not None and location.file
    }
    for note in plan.notes:
        if note.location:
            file, _, line = note.location.rpartition(":")
            places[note.location] = f"{files.get(file, file.rpartition('/')[2])}:{line}"
    return places


def _environment_record(
    plan: Plan, installed: DistributionIndex, torch_settings: Mapping[str, str]
) -> dict[str, Json]:
    """Return the record of the export environment, as the archive format page documents it."""
    loaded = sys.modules.get("torch")  # None if only sources were saved
    torch = str(loaded.__version__) if loaded is not None else None
    providers = _providers(plan, installed)
    named = ("torch", "modpack") if torch is not None else ("modpack",)
    required = [*providers.values(), *filter(None, map(installed.named, named))]
    compiled = [file.record for file in plan.files if file.kind is FileKind.NATIVE]
    modules = [record for record in compiled if record.endswith(tuple(EXTENSION_SUFFIXES))]
    environment = RecordedEnvironment(
        platform.python_version(),
        platform.python_implementation(),
        sys.platform,
        platform.machine(),
        torch,
        {path: normalized(found.name) for path, found in providers.items()},
        recorded_closure(installed, required),
        NativeTag.for_files(modules) if compiled else None,
        modpack=__version__,
        torch_settings=torch_settings,
    )
    return {
        **environment_to_json(environment),
        "distributions": {d.name: d.version for d in plan.distributions},
    }


def _providers(plan: Plan, installed: DistributionIndex) -> dict[str, InstalledDistribution]:
    """Map the shortest paths that belong to a single distribution to that distribution."""
    owners: dict[str, InstalledDistribution] = {}
    for module in plan.modules(Action.EXTERN):
        if not is_everywhere(module) and not _is_namespace_package(module, plan):
            found = installed.distribution_of(module, plan.decisions[module].location)
            if found is not None:
                owners[module] = found
    # A path with extern modules of several distributions identifies none of them.
    below: dict[str, set[InstalledDistribution]] = {}
    for module, found in owners.items():
        for path in (module, *parents(module)):
            below.setdefault(path, set()).add(found)
    widest: dict[str, InstalledDistribution] = {}
    for module, found in owners.items():
        # From the root downward, so that the first match is the shortest.
        paths = reversed([module, *parents(module)])
        alone = (
            path
            for path in paths
            if len(below[path]) == 1 and not _is_namespace_package(path, plan)
        )
        widest[next(alone, module)] = found
    return widest


def _is_namespace_package(path: str, plan: Plan) -> bool:
    """Return whether a path is a namespace package, which several distributions can share."""
    decision = plan.decisions.get(path)
    location = decision.location if decision is not None else None
    return location is not None and location.kind is CodeKind.NAMESPACE
