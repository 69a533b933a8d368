"""The walk: from what was saved to every module that it leads to.

A worklist, not a recursion: a chain of ten thousand imports is as good as any. The walk
finds and reads modules; what happens to each is for the caller to decide.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from modpack.core.actions import Action
from modpack.core.graph import DependencyGraph, Edge
from modpack.core.imports import ImportKind, ImportStatement, ModuleScan, ScanFailure
from modpack.core.location import CodeKind, Environment, Location
from modpack.core.names import parents, root_of
from modpack.core.progress import Unit, advance, phase
from modpack.discovery.source import scan_source

__all__ = ["PROVIDED_ON_LOAD", "Walker"]

PROVIDED_ON_LOAD = frozenset({"torch_package_importer", "_modpack_mock"})
"""Names that packaged code may import although no module of theirs is ever found: the
importer under the ancestor's name, and the runtime of stand-ins, which comes with them."""

Decide = Callable[[str], Action | None]
"""Decides a module that was reached; None leaves it undecided for now."""

Scan = Callable[[bytes, str, bool], ModuleScan]
"""Reads a source, given the module's path and whether it is a package."""


class Walker:
    """Reaches modules, in breadth-first order, and keeps the evidence.

    Args:
        environments: where modules come from, first choice first.
        decide: called once for each module that is reached, and again for one that it left
            undecided when new evidence, or :meth:`retry`, brings it up.
        scan: reads sources.

    Attributes:
        graph: who imports whom.
        scans: what each interned source says.
        actions: what was decided.
        undecided: what was reached and not decided, in order.
    """

    def __init__(
        self, environments: Sequence[Environment], decide: Decide, scan: Scan = scan_source
    ) -> None:
        self.graph = DependencyGraph()
        self.scans: dict[str, ModuleScan] = {}
        self.actions: dict[str, Action] = {}
        self.undecided: dict[str, None] = {}
        self._environments = tuple(environments)
        self._decide = decide
        self._scan_source = scan
        self._provided: dict[str, tuple[bytes, Location]] = {}
        self._home: dict[str, Environment] = {}
        self._queue: deque[str] = deque()
        self._running = False

    def provide(self, module: str, source: bytes, is_package: bool, follow: bool) -> None:
        """Give the source of a module, and intern it whatever the rules say.

        Another source for the same module replaces the first.

        Args:
            module: its path.
            source: its source.
            is_package: whether it can have submodules.
            follow: whether to walk on to what it imports.
        """
        self._provided[module] = (source, Location(module, CodeKind.SOURCE, None, is_package))
        self.include(module, follow)

    def include(self, module: str, follow: bool) -> None:
        """Intern a module that was located, whatever the rules say; see :meth:`provide`."""
        self.graph.drop_edges_from(module)
        self.graph.mark_root(module)
        self.undecided.pop(module, None)
        self.actions[module] = Action.INTERN
        self.scans.pop(module, None)
        if follow:
            self._reach_parents(module)
            self._follow(module)
        self._run()

    def reach(self, edges: Sequence[Edge]) -> None:
        """Follow evidence from outside the sources: pickles, or a user's word."""
        for edge in edges:
            self._reach(edge)
        self._run()

    def reach_more(self, edges: Iterable[Edge]) -> bool:
        """Follow further evidence; tells whether any of it was new."""
        more = [e for e in edges if e not in self.graph.edges_between(e.importer, e.imported)]
        self.reach(more)
        return bool(more)

    def note(self, edges: Sequence[Edge]) -> None:
        """Keep evidence without following it."""
        for edge in edges:
            self.graph.add_edge(edge)

    def reopen(self, module: str) -> None:
        """Take a decision back: the module is undecided, and what it led to is forgotten."""
        self.actions.pop(module, None)
        self.undecided[module] = None
        self.graph.drop_edges_from(module)

    def open_questions(self) -> list[str]:
        """The undecided modules that something still leads to."""
        reached = self.graph.reached()
        return [module for module in self.undecided if module in reached]

    def retry(self) -> None:
        """Bring up everything undecided again, for the rules may have changed."""
        self._queue.extend(self.undecided)
        self._run()

    def settle(self, module: str, action: Action) -> None:
        """Decide a module from outside, and walk on from it."""
        self._settle(module, action)
        self._run()

    def pin(self, root: str, environment: Environment) -> str | None:
        """Say that all modules under a root come from one environment.

        Returns:
            A module that is interned from another environment already, and so forbids that.
        """
        if self._home.get(root) is not environment:
            for module, action in self.actions.items():
                if action is Action.INTERN and root_of(module) == root:
                    found = self._find(module)[0] if module not in self._provided else None
                    if found not in (None, environment):
                        return module
            self._home[root] = environment
        return None

    def home_of(self, module: str) -> Environment | None:
        """The environment that a module's root was pinned to, if it was."""
        return self._home.get(root_of(module))

    def environment_of(self, module: str) -> Environment | None:
        """The environment that a module was found in; None if its source was given."""
        return None if module in self._provided else self._find(module)[0]

    def locate(self, module: str) -> Location | None:
        """Where a module was found, in the first environment that has it.

        A module whose source was given is found in no file.
        """
        given = self._provided.get(module)
        return given[1] if given is not None else self._find(module)[1]

    def is_loaded(self, module: str) -> bool:
        """Whether a module is loaded in this process, or held by a package."""
        return any(module in environment.loaded() for environment in self._environments)

    def needed_beside(self, module: str) -> list[str]:
        """The modules that are known to be needed where a module comes from."""
        environment = self._find(module)[0] if module not in self._provided else None
        return list(environment.loaded()) if environment is not None else []

    def live_home(self, module: str, name: str) -> str | None:
        """Where a class or function lives that a loaded module binds to a name."""
        environment = self._find(module)[0] if module not in self._provided else None
        return environment.live_home(module, name) if environment is not None else None

    def is_out_of_reach(self, importer: str, module: str) -> bool:
        """Whether an importer comes from a package that was made without a module."""
        environment = self._find(importer)[0] if importer not in self._provided else None
        return environment is not None and environment.lacks(module)

    def is_from_package(self, module: str) -> bool:
        """Whether a module comes from a package, which lacks what was left out of it."""
        environment = self._find(module)[0] if module not in self._provided else None
        return environment is not None and environment.is_package

    def has_source(self, module: str) -> bool:
        """Whether a module has a source that can be taken along."""
        location = self.locate(module)
        return location is not None and location.kind is CodeKind.SOURCE

    def source(self, module: str) -> bytes:
        """The source of a module that was located or provided.

        Raises:
            OSError: it cannot be read any more.
        """
        if module in self._provided:
            return self._provided[module][0]
        environment, location = self._find(module)
        if environment is None or location is None:
            raise FileNotFoundError(f"there is no module {module!r}")
        return environment.read_source(location)

    def is_package(self, module: str) -> bool:
        """Whether a module can have submodules."""
        location = self.locate(module)
        return location is not None and location.is_package

    def scan(self, module: str) -> ModuleScan:
        """What a module's source says about imports; empty if it has no source."""
        if module not in self.scans:
            self.scans[module] = self._scan(module)
        return self.scans[module]

    def _scan(self, module: str) -> ModuleScan:
        if not self.has_source(module):
            return ModuleScan()
        try:
            source = self.source(module)
        except OSError as failure:
            return ModuleScan(failure=ScanFailure(f"it cannot be read: {failure}"))
        return self._scan_source(source, module, self.is_package(module))

    def _find(self, module: str) -> tuple[Environment | None, Location | None]:
        pinned = self._home.get(root_of(module))
        for environment in self._environments if pinned is None else (pinned,):
            location = environment.locate(module)
            if location is not None:
                return environment, location
        return None, None

    def _run(self) -> None:
        if self._running:  # deciding a module brought up others: they wait for their turn
            return
        if not self._queue:
            return
        self._running = True
        try:
            with phase("following imports", Unit.MODULES):
                while self._queue:
                    self._visit(self._queue.popleft())
        finally:
            self._running = False

    def _visit(self, module: str) -> None:
        action = None if module in self.actions else self._decide(module)
        if module in self.actions:
            return
        if action is None:
            self.undecided[module] = None
        else:
            self._settle(module, action)

    def _settle(self, module: str, action: Action) -> None:
        self.undecided.pop(module, None)
        self.actions[module] = action
        advance()
        if action is not Action.DENY:
            self._reach_parents(module)
        if action is Action.INTERN:
            self._follow(module)

    def _reach(self, edge: Edge) -> None:
        new = self.graph.add_edge(edge) and edge.kind.is_dependency
        if new and edge.imported not in PROVIDED_ON_LOAD:
            self._queue.append(edge.imported)

    def _reach_parents(self, module: str) -> None:
        child = module
        for parent in parents(module):
            self._reach(Edge(child, parent, ImportKind.PARENT))
            child = parent

    def _follow(self, module: str) -> None:
        for statement in self.scan(module).imports:
            self._reach(
                Edge(module, statement.module, statement.kind, statement.line, statement.names)
            )
            if statement.kind.is_dependency:
                for name in self._submodules(statement):
                    submodule = f"{statement.module}.{name}"
                    self._reach(Edge(module, submodule, statement.kind, statement.line))

    def _submodules(self, statement: ImportStatement) -> list[str]:
        """Those names of ``from package import names`` that are modules, not attributes."""
        names = statement.names
        if names == ("*",):
            names = self.scan(statement.module).exported or ()
        return [name for name in names if self._is_submodule(statement.module, name)]

    def _is_submodule(self, package: str, name: str) -> bool:
        submodule = f"{package}.{name}"
        if submodule in self._provided:
            return True
        if package not in self._provided:
            environment, _ = self._find(package)
            live = environment.live_attribute(package, name) if environment else None
            if live is not None:
                return live == "submodule"
        if self.locate(submodule) is None:
            return False
        return name not in self.scan(package).bound
