"""Responses to the self-test's requests for missing resources, within the rules of the export."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import TypeGuard

from modpack.core.graph import Edge
from modpack.core.names import is_stdlib, module_record
from modpack.core.plan import Decision
from modpack.core.rules import Action
from modpack.core.scan import ImportKind
from modpack.core.selftest import Addition, AdditionKind
from modpack.exporting.planner import Planner
from modpack.selftest.process import NO_RESOURCES, ResolvedResources, ResourceRequest

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
        self._last_plan: tuple[dict[str, Decision], dict[str, Path]] | None = None

    def respond(self, request: ResourceRequest) -> ResolvedResources:
        """Add a requested resource if the rules include it, and return it with all that it adds."""
        kind, name, by, line = request
        if kind == "folder":
            return ResolvedResources(names=self._list_folder(name))
        # The rules decide about modules: a request for a source is one for its module.
        if kind == "file" and name.endswith(".py"):
            path = name.removesuffix(".py").removesuffix("/__init__")
            kind, name = "module", path.replace("/", ".")
        walker, data = self._planner.walker, self._planner.package_data
        # Most requests are for optional modules that are not installed.
        if kind == "module" and not self._is_available(name):
            return NO_RESOURCES
        # A request may lead to any number of modules, which need files of their own: the answer is
        # the difference between the plans.
        before, files = self._planned()
        why = f"{by or 'the package'} asked for it in the self-test"
        modules: list[str] = []
        is_new = False
        if kind == "module":
            modules = [name]
        elif kind == "plugins":  # with the metadata that names them
            modules = loaded_plugins(name, data.package_trees(before))
        elif kind == "file" and data.add_file(before, name, why):
            is_new = True
            self._note("file", name, by)
        elif kind == "metadata" and data.add_metadata(before, name, why):
            is_new = True
            self._note("metadata", name, by)
        wanted = list(filter(self._is_available, modules))
        for module in wanted:
            if not _is_included(before.get(module)):
                is_new |= self._add_import(before, module, by, line)
        if is_new:
            self._last_plan = None
        after, planned = self._planned()
        for module in wanted:
            decision, known = after.get(module), before.get(module)
            if _is_included(decision) and (known is None or known.action is not Action.INTERN):
                self._note("intern" if decision.action is Action.INTERN else "extern", module, by)
        new = {
            module: decision.action
            for module, decision in after.items()
            if module in wanted or module not in before or before[module].action != decision.action
        }
        contents = {
            module_record(module, walker.is_package(module)): walker.source(module)
            for module, action in new.items()
            if action is Action.INTERN and walker.has_source(module)
        }
        # The plan has the files that new modules read, which they may only test for.
        for record, file in planned.items():
            is_wanted = kind == "file" and f"{record}/".startswith(f"{name}/")
            if is_wanted or record not in files:
                contents[record] = file.read_bytes()
        externs = sorted(module for module, action in new.items() if action is Action.EXTERN)
        return ResolvedResources(contents, tuple(externs))

    def _is_available(self, module: str) -> bool:
        return not is_stdlib(module) and self._planner.walker.locate(module) is not None

    def _add_import(
        self, decisions: Mapping[str, Decision], name: str, by: str | None, line: int | None
    ) -> bool:
        """Add an edge to a module; return whether the graph lacked it."""
        walker = self._planner.walker
        if by is not None and by in decisions:
            return walker.add_new_edges([Edge(by, name, ImportKind.SELF_TEST, line)])
        walker.graph.mark_root(NODE)
        return walker.add_new_edges([Edge(NODE, name, ImportKind.SELF_TEST)])

    def _list_folder(self, record: str) -> tuple[str, ...]:
        """List a folder without adding it: its contents are requested when they are used."""
        decisions, _ = self._planned()
        for above in (PurePosixPath(record), *PurePosixPath(record).parents):
            decision = decisions.get(str(above).replace("/", "."))
            if decision is not None and decision.action is Action.INTERN:
                folders = decision.location.search if decision.location is not None else ()
                places = (Path(f) / PurePosixPath(record).relative_to(above) for f in folders)
                place = next(filter(Path.is_dir, places), None)
                inside = () if place is None else place.iterdir()
                names = (f"{e.name}/" if e.is_dir() else e.name for e in inside)
                return tuple(sorted(name for name in names if name != "__pycache__/"))
        return ()

    def _note(self, kind: AdditionKind, name: str, by: str | None) -> None:
        self.added.setdefault((kind, name), Addition(kind, name, by))

    def _planned(self) -> tuple[dict[str, Decision], dict[str, Path]]:
        """Return the decisions, and the planned data files and metadata by record.

        Only requests change them during a self-test. For a package of 1,000 modules, a new plan
        takes 75 milliseconds, and code may request thousands of resources.
        """
        if self._last_plan is None:
            decisions = self._planner.decisions()
            files = self._planner.package_data.find(decisions).files
            self._last_plan = decisions, {file.record: Path(file.source) for file in files}
        return self._last_plan


def _is_included(decision: Decision | None) -> TypeGuard[Decision]:
    return decision is not None and decision.action in (Action.INTERN, Action.EXTERN)


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
