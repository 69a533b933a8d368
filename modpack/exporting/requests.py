"""Responses to the self-test's requests for missing resources, within the rules of the export."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath

from modpack.core.graph import Edge
from modpack.core.names import is_stdlib, module_record
from modpack.core.plan import Decision
from modpack.core.rules import Action
from modpack.core.scan import ImportKind
from modpack.core.selftest import Addition, AdditionKind
from modpack.exporting.planner import Planner
from modpack.selftest.process import ResolvedResources, ResourceRequest

NODE = "<self-test>"
"""The graph node of modules that no packaged module requested."""


class MissingResourceResolver:
    """Extends a plan with the resources that the self-test requests.

    Args:
        planner: Decides which of them may be added.

    Attributes:
        added: Everything added so far, in the order of the requests.
    """

    def __init__(self, planner: Planner) -> None:
        self.added: dict[tuple[str, str], Addition] = {}
        self._planner = planner

    def respond(self, request: ResourceRequest) -> ResolvedResources:
        """Add a requested resource if the rules include it, and return it."""
        kind, name, by, line = request
        if kind == "module":
            return self._add_module(name, by, line)
        if kind == "file":
            return self._add_file(name, by, line)
        if kind == "folder":
            return self._list_folder(name)
        if kind == "metadata":
            return self._add_metadata(name, by)
        return self._add_plugins(name, by, line)

    def _add_module(self, name: str, by: str | None, line: int | None) -> ResolvedResources:
        if is_stdlib(name) or self._planner.walker.locate(name) is None:
            return ResolvedResources()
        before = self._planner.decisions()
        files = self._planned_files(before)
        after = (
            before if _is_included(before.get(name)) else self._add_import(before, name, by, line)
        )
        decision = after.get(name)
        if decision is None or not _is_included(decision):
            return ResolvedResources()
        if name not in _modules_with(before, Action.INTERN):
            kind: AdditionKind = "intern" if decision.action is Action.INTERN else "extern"
            self._note(kind, name, by)
        externs = _modules_with(after, Action.EXTERN) - _modules_with(before, Action.EXTERN)
        if decision.action is Action.EXTERN:
            return ResolvedResources(externs=tuple(sorted({name, *externs})))
        new = _modules_with(after, Action.INTERN) - _modules_with(before, Action.INTERN)
        contents = self._sources({name, *new})
        # The plan has the files that new modules read, which they may only test for.
        added = self._planned_files(after).items() - files.items() if new else ()
        contents.update((record, file.read_bytes()) for record, file in added)
        return ResolvedResources(contents, tuple(sorted(externs)))

    def _add_import(
        self, decisions: Mapping[str, Decision], name: str, by: str | None, line: int | None
    ) -> Mapping[str, Decision]:
        """Return the decisions after adding the import of a module."""
        if by is not None and by in decisions:
            self._planner.walker.add_edges([Edge(by, name, ImportKind.SELF_TEST, line)])
        else:
            edge = Edge(NODE, name, ImportKind.SELF_TEST)
            self._planner.add_resource(NODE, [edge], follow=True)
        return self._planner.decisions()

    def _add_file(self, record: str, by: str | None, line: int | None) -> ResolvedResources:
        if record.endswith(".py"):
            module = record.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            return self._add_module(module, by, line)
        if self._planner.add_file(record, f"{by or 'the package'} asked for it in the self-test"):
            self._note("file", record, by)
        return ResolvedResources(
            self._read_planned(lambda each: f"{each}/".startswith(f"{record}/"))
        )

    def _list_folder(self, record: str) -> ResolvedResources:
        """List a folder without adding it: its contents are requested when they are used."""
        place = self._host_folder(record)
        if place is None:
            return ResolvedResources()
        inside = [each for each in place.iterdir() if each.name != "__pycache__"]
        return ResolvedResources(
            names=tuple(sorted(f"{e.name}/" if e.is_dir() else e.name for e in inside))
        )

    def _add_metadata(self, name: str, by: str | None) -> ResolvedResources:
        before = self._planned_files()
        if not self._planner.add_metadata(
            name, f"{by or 'the package'} asked for it in the self-test"
        ):
            return ResolvedResources()
        self._note("metadata", name, by)
        return ResolvedResources(self._read_planned(lambda record: record not in before))

    def _add_plugins(self, group: str, by: str | None, line: int | None) -> ResolvedResources:
        """Return the loaded modules of an entry-point group, with the metadata that names them."""
        before = self._planned_files()
        trees = self._planner.package_data.package_trees(self._planner.decisions())
        given = [self._add_module(module, by, line) for module in loaded_plugins(group, trees)]
        files = self._read_planned(lambda record: record not in before)
        for each in given:
            files.update(each.files)
        externs = {extern for each in given for extern in each.externs}
        return ResolvedResources(files, tuple(sorted(externs)))

    def _note(self, kind: AdditionKind, name: str, by: str | None) -> None:
        self.added.setdefault((kind, name), Addition(kind, name, by))

    def _host_folder(self, record: str) -> Path | None:
        """Return the folder on this machine that a folder of the package comes from."""
        decisions = self._planner.decisions()
        for above in (PurePosixPath(record), *PurePosixPath(record).parents):
            decision = decisions.get(str(above).replace("/", "."))
            if decision is not None and decision.action is Action.INTERN:
                folders = decision.location.search if decision.location is not None else ()
                places = (Path(f) / PurePosixPath(record).relative_to(above) for f in folders)
                return next(filter(Path.is_dir, places), None)
        return None

    def _sources(self, modules: set[str]) -> dict[str, bytes]:
        walker = self._planner.walker
        return {
            module_record(module, walker.is_package(module)): walker.source(module)
            for module in modules
            if walker.has_source(module)
        }

    def _planned_files(self, decisions: Mapping[str, Decision] | None = None) -> dict[str, Path]:
        """Return the data files and metadata that the plan includes, by record."""
        files = self._planner.package_data.find(decisions or self._planner.decisions()).files
        return {file.record: Path(file.source) for file in files}

    def _read_planned(self, is_wanted: Callable[[str], bool]) -> dict[str, bytes]:
        planned = self._planned_files().items()
        return {record: file.read_bytes() for record, file in planned if is_wanted(record)}


def _is_included(decision: Decision | None) -> bool:
    return decision is not None and decision.action in (Action.INTERN, Action.EXTERN)


def _modules_with(decisions: Mapping[str, Decision], action: Action) -> set[str]:
    return {module for module, decision in decisions.items() if decision.action is action}


def loaded_plugins(group: str, packages: Iterable[Path] = ()) -> list[str]:
    """Return the modules of an entry-point group that this process has loaded.

    Code that uses plugins loads all entry points of a group. A module that is loaded in the export
    process may be needed by the model; modules that are merely installed are left out. Plugins that
    another package contains are included, because that package needed them.

    Args:
        group: The entry-point group.
        packages: The unpacked trees of packages that the model's code comes from.

    Returns:
        Sorted module paths.
    """
    installed = importlib.metadata.entry_points(group=group)
    loaded = {entry.module for entry in installed if entry.module in sys.modules}
    trees = [str(tree) for tree in packages]
    held = importlib.metadata.distributions(path=trees) if trees else ()
    packaged = {e.module for found in held for e in found.entry_points if e.group == group}
    return sorted(loaded | packaged)
