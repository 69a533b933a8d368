"""The dependency walk: from the saved objects and modules to every module that they import.

The walk uses a worklist instead of recursion, so import chains may have any length. It finds and
scans modules; the caller decides what happens to each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from modpack.core.graph import CodeKind, DependencyGraph, Edge, Location, ModuleSource
from modpack.core.names import parents, root_of
from modpack.core.process import ProgressUnit, advance, phase
from modpack.core.rules import Action
from modpack.core.scan import ImportKind, ImportStatement, ModuleScan, ScanFailure
from modpack.discovery.import_scanner import scan_source

Scan = Callable[[bytes, str, bool], ModuleScan]
"""Scans a source, given its bytes, the module's path, and whether it is a package."""

_MAX_CACHED_BYTES: Final = 64 << 20
"""Bytes of source kept in memory. Sources beyond this limit are read again for each request."""
_PROVIDED_ON_LOAD: Final = frozenset({"torch_package_importer", "_modpack_mock"})
"""Modules that packaged code may import although no environment has them: the importer under
torch.package's name, and the mock runtime, which modpack adds to packages with mocks."""

Decide = Callable[[str], Action | None]
"""Returns the action for a module; None leaves the module undecided for now."""


class Walker:
    """A breadth-first walk over modules that builds the dependency graph.

    The walk caches locations and sources for the whole export, so the bytes that are scanned,
    searched for secrets, and written are always the same.

    Args:
        environments: Module sources, first choice first.
        decide: Function that returns the action for a module. Called once for each module, and
            again for an undecided one on new evidence or :meth:`retry`.
        scan: Function that scans sources.

    Attributes:
        graph: Dependency graph of the modules and resources reached so far.
        actions: Actions by module.
        undecided: Modules without an action, in the order in which they were reached.
        scans: Scan results by module.
    """

    def __init__(
        self, environments: Sequence[ModuleSource], decide: Decide, scan: Scan = scan_source
    ) -> None:
        self.scans: dict[str, ModuleScan] = {}
        self._environments = environments  # a list may grow while objects are saved
        self._scan_source = scan
        self._provided: dict[str, tuple[bytes, Location]] = {}
        self._folders: dict[str, Location] = {}
        self._pinned: dict[str, ModuleSource] = {}
        self._found: dict[str, tuple[ModuleSource, Location]] = {}
        self._sources: dict[str, bytes] = {}
        self._cached_bytes = 0
        self.graph = DependencyGraph()
        self.actions: dict[str, Action] = {}
        self.undecided: dict[str, None] = {}
        self._decide_by_rule = decide
        self._known_submodules: dict[str, bool] = {}
        self._stops: set[str] = set()
        self._followed: set[str] = set()
        self._queue: deque[str] = deque()
        self._running = False

    def environment_of(self, module: str) -> ModuleSource | None:
        """Return the environment that a module was found in; None if its source was provided."""
        return None if module in self._provided else self._find_module(module)[0]

    def locate(self, module: str) -> Location | None:
        """Return a module's location in the first environment that has it.

        The location has no file if the source was provided, or if the module is only a folder of
        saved resources.
        """
        provided = self._provided.get(module)
        if provided is not None:
            return provided[1]
        return self._find_module(module)[1] or self._folders.get(module)

    def add_folder(self, package: str) -> None:
        """Add a package that exists only because resources are saved in it."""
        self._folders[package] = Location(package, CodeKind.NAMESPACE, None, True)

    def is_folder(self, module: str) -> bool:
        """Return whether a module is only a folder of saved resources."""
        if module not in self._folders:
            return False
        location = self.locate(module)
        return location is not None and location.kind is CodeKind.NAMESPACE

    def is_loaded(self, module: str) -> bool:
        """Return whether a module is loaded in this process or contained in a package."""
        return any(module in environment.loaded() for environment in self._environments)

    def loaded_with(self, module: str) -> list[str]:
        """Return the loaded modules of the environment that a module comes from."""
        environment = self.environment_of(module)
        return list(environment.loaded()) if environment is not None else []

    def defining_module(self, module: str, name: str) -> str | None:
        """Return the module that defines the class or function that a loaded module binds."""
        environment = self.environment_of(module)
        return environment.defining_module(module, name) if environment is not None else None

    def is_excluded_for(self, importer: str, module: str) -> bool:
        """Return whether an importer comes from a package that excludes a module."""
        environment = self.environment_of(importer)
        return environment is not None and environment.lacks(module)

    def is_from_package(self, module: str) -> bool:
        """Return whether a module comes from a package, which may lack excluded modules."""
        environment = self.environment_of(module)
        return environment is not None and environment.is_package

    def has_source(self, module: str) -> bool:
        """Return whether a module has source code that can be packaged."""
        location = self.locate(module)
        return location is not None and location.kind is CodeKind.SOURCE

    def source(self, module: str) -> bytes:
        """Return the source of a module that was located or provided.

        Raises:
            OSError: If the source can no longer be read.
        """
        if module in self._provided:
            return self._provided[module][0]
        if module in self._sources:
            return self._sources[module]
        environment, location = self._find_module(module)
        if environment is None or location is None:
            raise FileNotFoundError(f"module {module!r} not found")
        source = environment.read_source(location)
        if self._cached_bytes + len(source) <= _MAX_CACHED_BYTES:
            self._cached_bytes += len(source)
            self._sources[module] = source
        return source

    def is_package(self, module: str) -> bool:
        """Return whether a module can have submodules."""
        location = self.locate(module)
        return location is not None and location.is_package

    def scan(self, module: str) -> ModuleScan:
        """Return the scan of a module; empty if the module has no source."""
        if module not in self.scans:
            self.scans[module] = self._scan(module)
        return self.scans[module]

    def _scan(self, module: str) -> ModuleScan:
        if not self.has_source(module):
            return ModuleScan()
        try:
            source = self.source(module)
        except OSError as failure:
            return ModuleScan(failure=ScanFailure(f"the source cannot be read: {failure}"))
        return self._scan_source(source, module, self.is_package(module))

    def _find_module(self, module: str) -> tuple[ModuleSource | None, Location | None]:
        known = self._found.get(module)
        if known is not None:
            return known
        # Objects of a package need its version of the library, whatever else is installed.
        pinned = self._pinned.get(root_of(module))
        for environment in self._environments if pinned is None else (pinned,):
            location = environment.locate(module)
            if location is not None:
                self._found[module] = environment, location
                return environment, location
        # A miss is not remembered: the list of environments may grow.
        return None, None

    def _forget_source(self, module: str) -> None:
        """Drop a module's source and scan, so that the next request reads it again."""
        self.scans.pop(module, None)
        self._cached_bytes -= len(self._sources.pop(module, b""))

    def provide(self, module: str, source: bytes, is_package: bool, follow: bool) -> None:
        """Add a module by its source and intern it, regardless of the rules.

        A second source for the same module replaces the first.

        Args:
            module: Module path.
            source: Source code.
            is_package: Whether the module can have submodules.
            follow: Whether to walk on to the module's imports.
        """
        self._provided[module] = (source, Location(module, CodeKind.SOURCE, None, is_package))
        self.include(module, follow)

    def include(self, module: str, follow: bool) -> None:
        """Intern a located module, regardless of the rules; see :meth:`provide`."""
        # The edges, source, and scan may be those of an earlier source, which this one replaces.
        self.graph.drop_edges_from(module)
        self.graph.mark_root(module)
        self.undecided.pop(module, None)
        self.actions[module] = Action.INTERN
        self._forget_source(module)
        self._followed.discard(module)
        if follow:
            self._add_parents(module)
            self._follow(module)
        self._run()

    def is_followed(self, module: str) -> bool:
        """Return whether the walk went on to a module's imports."""
        return module in self._followed

    def stop_at(self, module: str) -> None:
        """Do not walk on to a module's imports once it is decided."""
        self._stops.add(module)

    def add_edges(self, edges: Sequence[Edge]) -> None:
        """Add edges from pickles or explicit requests, and walk on from their targets."""
        for edge in edges:
            self._add_edge(edge)
        self._run()

    def add_new_edges(self, edges: Iterable[Edge]) -> bool:
        """Add those edges that the graph lacks; return whether there were any."""
        # A list first: the edges come from generators that read the graph.
        more = [e for e in edges if e not in self.graph.edges_between(e.importer, e.imported)]
        self.add_edges(more)
        return bool(more)

    def record_edges(self, edges: Sequence[Edge]) -> None:
        """Add edges to the graph without walking on from their targets."""
        for edge in edges:
            self.graph.add_edge(edge)

    def undecide(self, module: str) -> None:
        """Revoke a module's action and drop its outgoing edges."""
        self.actions.pop(module, None)
        self._followed.discard(module)
        self.undecided[module] = None
        self.graph.drop_edges_from(module)

    def reachable_undecided(self) -> list[str]:
        """Return the undecided modules that are still reachable from the roots."""
        reached = self.graph.reachable_nodes()
        return [module for module in self.undecided if module in reached]

    def retry(self) -> None:
        """Ask for the actions of all undecided modules again, after the rules have changed."""
        self._queue.extend(self.undecided)
        self._run()

    def decide(self, module: str, action: Action) -> None:
        """Set a module's action and walk on from it."""
        self._apply_decision(module, action)
        self._run()

    def pin_root(self, root: str, environment: ModuleSource) -> str | None:
        """Take all modules under a root from one environment.

        Returns:
            A module that is already interned from another environment, which prevents this; None
            otherwise.
        """
        if self._pinned.get(root) is not environment:
            for module, action in self.actions.items():
                if action is Action.INTERN and root_of(module) == root:
                    found = self.environment_of(module)
                    # One package cannot contain a library from two environments.
                    if found not in (None, environment):
                        return module
            self._pinned[root] = environment
            self._found.clear()
            for module in [m for m in (*self.scans, *self._sources) if root_of(m) == root]:
                self._forget_source(module)
        return None

    def _run(self) -> None:
        # Match hooks run inside of a walk, and may add modules themselves.
        if self._running or not self._queue:  # modules added by a decision wait in the queue
            return
        self._running = True
        try:
            with phase("following imports", ProgressUnit.MODULES):
                while self._queue:
                    self._visit(self._queue.popleft())
        finally:
            self._running = False
            # The answers depend on live modules and provided sources, which change between runs.
            self._known_submodules.clear()

    def _visit(self, module: str) -> None:
        action = None if module in self.actions else self._decide_by_rule(module)
        # A match hook that ran for the decision may have decided this module itself.
        if module in self.actions:
            return
        if action is None:
            self.undecided[module] = None
        else:
            self._apply_decision(module, action)

    def _apply_decision(self, module: str, action: Action) -> None:
        self.undecided.pop(module, None)
        self.actions[module] = action
        advance()
        if action is not Action.DENY and module not in self._stops:
            self._add_parents(module)
        if action is Action.INTERN and module not in self._stops:
            self._follow(module)

    def _add_edge(self, edge: Edge) -> None:
        new = self.graph.add_edge(edge) and edge.kind.is_dependency
        if new and edge.imported not in _PROVIDED_ON_LOAD:
            self._queue.append(edge.imported)

    def _add_parents(self, module: str) -> None:
        child = module
        for parent in parents(module):
            self._add_edge(Edge(child, parent, ImportKind.PARENT))
            child = parent

    def _follow(self, module: str) -> None:
        self._followed.add(module)
        for statement in self.scan(module).imports:
            kind = self._edge_kind(statement)
            self._add_edge(Edge(module, statement.module, kind, statement.line, statement.names))
            if kind.is_dependency:
                for name in self._submodules(statement):
                    submodule = f"{statement.module}.{name}"
                    self._add_edge(Edge(module, submodule, kind, statement.line))

    def _edge_kind(self, statement: ImportStatement) -> ImportKind:
        """Return the kind of an import; guarded for an absent module under a condition."""
        # Locate a module only if a condition surrounds its import: a finder in sys.meta_path may
        # import something to answer.
        if statement.is_optional and not statement.kind.may_be_absent:
            if self.locate(statement.module) is None:
                return ImportKind.GUARDED
        return statement.kind

    def _submodules(self, statement: ImportStatement) -> list[str]:
        """Return the names of ``from package import names`` that are modules, not attributes."""
        names = statement.names
        # A star import also imports the submodules that ``__all__`` names.
        if names == ("*",):
            names = self.scan(statement.module).exported or ()
        return [name for name in names if self._is_known_submodule(statement.module, name)]

    def _is_known_submodule(self, package: str, name: str) -> bool:
        """Cached :meth:`_is_submodule`: many modules import the same names in one run."""
        submodule = f"{package}.{name}"
        if submodule not in self._known_submodules:
            self._known_submodules[submodule] = self._is_submodule(package, name, submodule)
        return self._known_submodules[submodule]

    def _is_submodule(self, package: str, name: str, submodule: str) -> bool:
        if submodule in self._provided:
            return True
        # The import statement takes an attribute before a submodule of the same name. If the
        # package is loaded, its namespace shows which of the two it takes.
        if package not in self._provided:
            environment, _ = self._find_module(package)
            live = environment.live_attribute(package, name) if environment else None
            if live is not None:
                return live == "submodule"
        if self.locate(submodule) is None:
            return False
        return name not in self.scan(package).bound
