"""Answers what a package asks for while it is tried: what the rules would take, it gets."""

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
from modpack.selftest.process import Answer, Question

NODE = "<self-test>"
"""Who needs a module that no packaged module asked for."""


class MissingResourceResolver:
    """Extends a plan by what the self-test misses.

    Args:
        planner: decides.

    Attributes:
        added: what was added by now, in the order in which it was asked for.
    """

    def __init__(self, planner: Planner) -> None:
        self.added: dict[tuple[str, str], Addition] = {}
        self._planner = planner

    def answer(self, question: Question) -> Answer:
        """Add what is asked for, if the rules take it."""
        kind, name, by, line = question
        if kind == "module":
            return self._module(name, by, line)
        if kind == "file":
            return self._file(name, by, line)
        if kind == "folder":
            return self._folder(name)
        if kind == "metadata":
            return self._metadata(name, by)
        return self._plugins(name, by, line)

    def _module(self, name: str, by: str | None, line: int | None) -> Answer:
        if is_stdlib(name) or self._planner.walker.locate(name) is None:
            return Answer()
        before = self._planner.decisions()
        after = before if _is_taken(before.get(name)) else self._reached(before, name, by, line)
        decision = after.get(name)
        if decision is None or not _is_taken(decision):
            return Answer()
        if name not in _with(before, Action.INTERN):
            kind: AdditionKind = "intern" if decision.action is Action.INTERN else "extern"
            self._note(kind, name, by)
        externs = _with(after, Action.EXTERN) - _with(before, Action.EXTERN)
        if decision.action is Action.EXTERN:
            return Answer(externs=tuple(sorted({name, *externs})))
        new = _with(after, Action.INTERN) - _with(before, Action.INTERN)
        return Answer(self._sources({name, *new}), tuple(sorted(externs)))

    def _reached(
        self, decisions: Mapping[str, Decision], name: str, by: str | None, line: int | None
    ) -> Mapping[str, Decision]:
        """The decisions, now that a module is known to be imported."""
        if by is not None and by in decisions:
            self._planner.walker.reach([Edge(by, name, ImportKind.SELF_TEST, line)])
        else:
            edge = Edge(NODE, name, ImportKind.SELF_TEST)
            self._planner.add_resource(NODE, [edge], follow=True)
        return self._planner.decisions()

    def _file(self, record: str, by: str | None, line: int | None) -> Answer:
        if record.endswith(".py"):
            module = record.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            return self._module(module, by, line)
        if self._planner.add_file(record, f"{by or 'the package'} asked for it in the self-test"):
            self._note("file", record, by)
        return Answer(self._contents(lambda each: f"{each}/".startswith(f"{record}/")))

    def _folder(self, record: str) -> Answer:
        """A listing takes nothing along: what is then imported or opened is asked for."""
        place = self._host_folder(record)
        if place is None:
            return Answer()
        inside = [each for each in place.iterdir() if each.name != "__pycache__"]
        return Answer(names=tuple(sorted(f"{e.name}/" if e.is_dir() else e.name for e in inside)))

    def _metadata(self, name: str, by: str | None) -> Answer:
        before = self._planned()
        if not self._planner.add_metadata(
            name, f"{by or 'the package'} asked for it in the self-test"
        ):
            return Answer()
        self._note("metadata", name, by)
        return Answer(self._contents(lambda record: record not in before))

    def _plugins(self, group: str, by: str | None, line: int | None) -> Answer:
        """What was loaded here from a group of entry points, with the metadata that names it."""
        before = self._planned()
        trees = self._planner.package_data.trees(self._planner.decisions())
        given = [self._module(module, by, line) for module in loaded_plugins(group, trees)]
        files = self._contents(lambda record: record not in before)
        for each in given:
            files.update(each.files)
        externs = {extern for each in given for extern in each.externs}
        return Answer(files, tuple(sorted(externs)))

    def _note(self, kind: AdditionKind, name: str, by: str | None) -> None:
        self.added.setdefault((kind, name), Addition(kind, name, by))

    def _host_folder(self, record: str) -> Path | None:
        """The folder of this machine that a folder of the package stands for."""
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

    def _planned(self) -> dict[str, Path]:
        """The data files and metadata that the plan takes along, by record."""
        files = self._planner.package_data.find(self._planner.decisions()).files
        return {file.record: Path(file.source) for file in files}

    def _contents(self, is_wanted: Callable[[str], bool]) -> dict[str, bytes]:
        planned = self._planned().items()
        return {record: file.read_bytes() for record, file in planned if is_wanted(record)}


def _is_taken(decision: Decision | None) -> bool:
    return decision is not None and decision.action in (Action.INTERN, Action.EXTERN)


def _with(decisions: Mapping[str, Decision], action: Action) -> set[str]:
    return {module for module, decision in decisions.items() if decision.action is action}


def loaded_plugins(group: str, packages: Iterable[Path] = ()) -> list[str]:
    """The modules of a group of entry points that this process has loaded.

    Whoever loads plugins asks for a group and loads what is in it. That such a module is loaded
    in the process in which the model works tells that the model may need it; what is merely
    installed is left out. What another package holds, it holds because it was needed.

    Args:
        group: the group of entry points.
        packages: the unpacked trees of packages that the model's code comes from.

    Returns:
        Module paths, sorted.
    """
    installed = importlib.metadata.entry_points(group=group)
    loaded = {entry.module for entry in installed if entry.module in sys.modules}
    trees = [str(tree) for tree in packages]
    held = importlib.metadata.distributions(path=trees) if trees else ()
    packaged = {e.module for found in held for e in found.entry_points if e.group == group}
    return sorted(loaded | packaged)
