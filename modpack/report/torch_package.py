"""Reconstruction of the plan of a ``torch.package`` archive from its contents.

Such an archive records its interned, mocked, and extern modules. The imports are read from the
sources, and the dependencies of saved objects from the opcodes of their pickles. Nothing is
executed or unpickled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.limits import max_modules
from modpack.archive.records import read_externs
from modpack.core.graph import CodeKind, DependencyGraph, Edge, Location
from modpack.core.names import GlobGroup, parents
from modpack.core.plan import Decision, Plan
from modpack.core.rules import UNRECORDED, Action, Rule, RuleOrigin
from modpack.core.scan import ImportKind, ImportStatement, ModuleScan
from modpack.diagnostics import Diagnostic
from modpack.discovery.import_scanner import scan_source
from modpack.errors import ArchiveError
from modpack.report.package_info import recorded_modules
from modpack.trust.code_listing import list_code
from modpack.trust.pickle_names import PickleContents

_MOCK_RUNTIME: Final = "_mock"
"""The module that torch.package's mocks import."""
_ANYTHING: Final = GlobGroup("**")


def reconstructed_plan(archive: Archive) -> Plan:
    """Return the plan of a torch.package archive, as far as its contents show it.

    The rules of its decisions are :data:`.UNRECORDED`. Chains begin at the saved objects, and at
    modules that these do not reach, which were saved by name.

    Args:
        archive: An archive without a manifest.

    Raises:
        ArchiveError: If a record is damaged.
    """
    return _Reconstruction(archive).plan()


class _Reconstruction:
    """The reconstruction of one archive's plan."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._graph = DependencyGraph()
        self._notes: list[Diagnostic] = []
        found = list(recorded_modules(archive))
        most = max_modules(archive.stored_bytes())
        if len(found) > most:
            reason = f"it holds {len(found)} modules, and {most} are allowed"
            raise ArchiveError(archive.path, reason)
        # Python prefers a package to a module of the same name.
        found.sort(key=lambda each: each.is_package)
        self._held = {each.module: each for each in found}
        self._decisions = dict(self._decide())
        self._scans = dict(self._scan())

    def plan(self) -> Plan:
        for record, contents in list_code(self._archive, None).pickles.items():
            if not layout.is_internal(record):
                self._add_object(record, contents)
        for module, scan in self._scans.items():
            self._add_imports(module, scan)
            self._add_notes(module, scan)
        for module, decision in self._decisions.items():
            self._add_parents(module)
            if decision.action is Action.MOCK:
                self._graph.add_edge(Edge(module, _MOCK_RUNTIME, ImportKind.REQUIRED, 1))
        self._mark_what_was_saved()
        return Plan(self._decisions, notes=tuple(self._notes), graph=self._graph)

    def _decide(self) -> Iterator[tuple[str, Decision]]:
        for module in read_externs(self._archive):
            yield module, _decision(module, Action.EXTERN)
        for module, held in self._held.items():
            is_source = held.action is Action.INTERN
            location = Location(module, CodeKind.SOURCE, held.record, held.is_package)
            yield module, _decision(module, held.action, location if is_source else None)
            for folder in parents(module):
                if folder not in self._held:  # becomes an empty package
                    location = Location(folder, CodeKind.NAMESPACE, None, True)
                    yield folder, _decision(folder, Action.INTERN, location)

    def _scan(self) -> Iterator[tuple[str, ModuleScan]]:
        for module, held in self._held.items():
            if held.action is Action.INTERN:
                source = self._archive.read(held.record)
                yield module, scan_source(source, module, held.is_package)

    def _add_object(self, record: str, contents: PickleContents) -> None:
        node = f"<{record}>"
        self._graph.mark_root(node)
        names: dict[str, dict[str, None]] = {}
        for each in contents.names:
            names.setdefault(each.module, {})[each.name] = None
        for module, taken in names.items():
            self._graph.add_edge(Edge(node, module, ImportKind.PICKLE, None, tuple(taken)))

    def _add_imports(self, module: str, scan: ModuleScan) -> None:
        for statement in scan.imports:
            kind, line = statement.kind, statement.line
            self._graph.add_edge(Edge(module, statement.module, kind, line, statement.names))
            for name in self._submodules(statement) if kind.is_dependency else ():
                self._graph.add_edge(Edge(module, f"{statement.module}.{name}", kind, line))

    def _submodules(self, statement: ImportStatement) -> list[str]:
        """Return the names of ``from package import names`` that are modules, not attributes."""
        package = self._scans.get(statement.module, ModuleScan())
        names = statement.names
        if names == ("*",):
            names = package.exported or ()
        return [
            name
            for name in names
            if f"{statement.module}.{name}" in self._decisions and name not in package.bound
        ]

    def _add_parents(self, module: str) -> None:
        self._graph.add_node(module)
        parent = next((each for each in parents(module) if each in self._decisions), None)
        if parent is not None:  # which gets an edge to its own parent
            self._graph.add_edge(Edge(module, parent, ImportKind.PARENT))

    def _add_notes(self, module: str, scan: ModuleScan) -> None:
        record = self._held[module].record
        if scan.failure is not None:
            line = "" if scan.failure.line is None else f":{scan.failure.line}"
            text = f"{module} cannot be parsed: {scan.failure.reason}"
            self._note("source-unparsable", module, text, f"{record}{line}")
        for unreadable in scan.unreadable:
            text = f"the name that {unreadable.call} imports is computed at run time"
            self._note("dynamic-import", module, text, f"{record}:{unreadable.line}")

    def _note(self, code: str, subject: str, text: str, location: str) -> None:
        self._notes.append(Diagnostic.from_code(code, subject, text, location))

    def _mark_what_was_saved(self) -> None:
        """Mark the unreached interned modules as roots, those without importers first."""
        reached = set(self._graph.reachable_nodes())
        left = sorted(module for module in self._scans if module not in reached)
        for module in sorted(left, key=self._has_importer):
            if module not in reached:
                self._graph.mark_root(module)
                self._reach(module, reached)

    def _has_importer(self, module: str) -> bool:
        return any(self._graph.depends(i, module) for i in self._graph.predecessors(module))

    def _reach(self, module: str, reached: set[str]) -> None:
        todo = [module]
        while todo:
            node = todo.pop()
            if node not in reached:
                reached.add(node)
                todo += [f for f in self._graph.successors(node) if self._graph.depends(node, f)]


def _decision(module: str, action: Action, location: Location | None = None) -> Decision:
    rule = Rule(action, _ANYTHING, origin=RuleOrigin.SAVED, label=UNRECORDED)
    return Decision(module, action, rule, location)
