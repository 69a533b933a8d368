"""The walk: from what was saved to every module that it leads to.

A worklist, not a recursion: a chain of ten thousand imports is as good as any. The walk finds and
reads modules; what happens to each is for the caller to decide.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from modpack.core.graph import CodeKind, DependencyGraph, Edge, Location, ModuleSource
from modpack.core.names import parents, root_of
from modpack.core.process import ProgressUnit, advance, phase
from modpack.core.rules import Action
from modpack.core.scan import ImportKind, ImportStatement, ModuleScan, ScanFailure
from modpack.discovery.import_scanner import scan_source

if TYPE_CHECKING:
    from modpack.discovery.conditions import ConditionResult

Scan = Callable[[bytes, str, bool], ModuleScan]
"""Reads a source, given the module's path and whether it is a package."""

_MAX_KEPT: Final = 64 << 20
"""Bytes of sources that are kept; of further ones, each is read as often as it is asked for."""
_PROVIDED_ON_LOAD: Final = frozenset({"torch_package_importer", "_modpack_mock"})
"""Names that packaged code may import although no module of theirs is ever found: the
importer under the ancestor's name, and the runtime of stand-ins, which comes with them."""

Decide = Callable[[str], Action | None]
"""Decides a module that was reached; None leaves it undecided for now."""


class Walker:
    """Reaches modules, in breadth-first order, and keeps the evidence.

    What is found is kept for the life of an export: everything that looks at a module sees the same
    place and the same bytes, those that were scanned, looked through for secrets, and written.

    Args:
        environments: where modules come from, first choice first.
        decide: called once for each module that is reached, and again for one that it left
            undecided when new evidence, or :meth:`retry`, brings it up.
        scan: reads sources.

    Attributes:
        graph: who imports whom.
        actions: what was decided.
        undecided: what was reached and not decided, in order.
        scans: what each source says that was scanned.
    """

    def __init__(
        self, environments: Sequence[ModuleSource], decide: Decide, scan: Scan = scan_source
    ) -> None:
        self.scans: dict[str, ModuleScan] = {}
        self._environments = tuple(environments)
        self._scan_source = scan
        self._provided: dict[str, tuple[bytes, Location]] = {}
        self._folders: dict[str, Location] = {}
        self._home: dict[str, ModuleSource] = {}
        self._found: dict[str, tuple[ModuleSource, Location]] = {}
        self._sources: dict[str, bytes] = {}
        self._telling: dict[str, bool] = {}
        self._presences: dict[str, Callable[[str], ConditionResult]] = {}
        self._kept = 0
        self.graph = DependencyGraph()
        self.actions: dict[str, Action] = {}
        self.undecided: dict[str, None] = {}
        self._decide = decide
        self._submodule: dict[str, bool] = {}
        self._ends: set[str] = set()
        self._followed: set[str] = set()
        self._queue: deque[str] = deque()
        self._running = False

    def environment_of(self, module: str) -> ModuleSource | None:
        """The environment that a module was found in; None if its source was given."""
        return None if module in self._provided else self._find(module)[0]

    def locate(self, module: str) -> Location | None:
        """Where a module was found, in the first environment that has it.

        A module whose source was given is found in no file, and neither is a folder of saved
        resources that no environment has a module for.
        """
        given = self._provided.get(module)
        if given is not None:
            return given[1]
        return self._find(module)[1] or self._folders.get(module)

    def add_folder(self, package: str) -> None:
        """Note a package that will exist in any case, for the resources that are saved in it."""
        self._folders[package] = Location(package, CodeKind.NAMESPACE, None, True)

    def is_folder(self, module: str) -> bool:
        """Whether a module is nothing but the folder of saved resources."""
        if module not in self._folders:
            return False
        location = self.locate(module)
        return location is not None and location.kind is CodeKind.NAMESPACE

    def is_loaded(self, module: str) -> bool:
        """Whether a module is loaded in this process, or held by a package."""
        return any(module in environment.loaded() for environment in self._environments)

    def needed_beside(self, module: str) -> list[str]:
        """The modules that are known to be needed where a module comes from."""
        environment = self.environment_of(module)
        return list(environment.loaded()) if environment is not None else []

    def live_home(self, module: str, name: str) -> str | None:
        """Where a class or function lives that a loaded module binds to a name."""
        environment = self.environment_of(module)
        return environment.live_home(module, name) if environment is not None else None

    def is_out_of_reach(self, importer: str, module: str) -> bool:
        """Whether an importer comes from a package that was made without a module."""
        environment = self.environment_of(importer)
        return environment is not None and environment.lacks(module)

    def is_from_package(self, module: str) -> bool:
        """Whether a module comes from a package, which lacks what was left out of it."""
        environment = self.environment_of(module)
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
        if module in self._sources:
            return self._sources[module]
        environment, location = self._find(module)
        if environment is None or location is None:
            raise FileNotFoundError(f"there is no module {module!r}")
        source = environment.read_source(location)
        if self._kept + len(source) <= _MAX_KEPT:
            self._kept += len(source)
            self._sources[module] = source
        return source

    def is_package(self, module: str) -> bool:
        """Whether a module can have submodules."""
        location = self.locate(module)
        return location is not None and location.is_package

    def scan(self, module: str) -> ModuleScan:
        """What a module's source says about imports; empty if it has no source."""
        if module not in self.scans:
            self.scans[module] = self._scan(module)
        return self.scans[module]

    def tells_presence(self, name: str) -> bool:
        """Whether a name, such as ``lib.utils.is_x_available``, tells if some module is there.

        Most need not be asked: a few modules of a library have such names.
        """
        if name not in self._telling:
            waiting, seen, is_told = [name], {name}, False
            while waiting and not is_told:
                module, _, attribute = waiting.pop().rpartition(".")
                if self.has_source(module) and self.scan(module).failure is None:
                    answer = self._presence(module)(attribute)
                    is_told = answer.is_told
                    waiting.extend(each for each in answer.elsewhere if each not in seen)
                    seen.update(answer.elsewhere)
            self._telling[name] = is_told
        return self._telling[name]

    def _presence(self, module: str) -> Callable[[str], ConditionResult]:
        if module not in self._presences:
            from modpack.discovery.import_scanner import presence_in

            source = self.source(module)
            self._presences[module] = presence_in(source, module, self.is_package(module))
        return self._presences[module]

    def _scan(self, module: str) -> ModuleScan:
        if not self.has_source(module):
            return ModuleScan()
        try:
            source = self.source(module)
        except OSError as failure:
            return ModuleScan(failure=ScanFailure(f"it cannot be read: {failure}"))
        return self._scan_source(source, module, self.is_package(module))

    def _find(self, module: str) -> tuple[ModuleSource | None, Location | None]:
        known = self._found.get(module)
        if known is not None:
            return known
        pinned = self._home.get(root_of(module))
        for environment in self._environments if pinned is None else (pinned,):
            location = environment.locate(module)
            if location is not None:
                self._found[module] = environment, location
                return environment, location
        return None, None

    def _forget_source(self, module: str) -> None:
        """Read and scan a module again when it is asked for the next time."""
        self.scans.pop(module, None)
        self._kept -= len(self._sources.pop(module, b""))

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
        self._forget_source(module)
        self._followed.discard(module)
        if follow:
            self._reach_parents(module)
            self._follow(module)
        self._run()

    def is_followed(self, module: str) -> bool:
        """Whether the walk went on to what a module imports."""
        return module in self._followed

    def end_at(self, module: str) -> None:
        """Do not walk on to what a module imports, once it is decided."""
        self._ends.add(module)

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
        self._followed.discard(module)
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

    def pin(self, root: str, environment: ModuleSource) -> str | None:
        """Say that all modules under a root come from one environment.

        Returns:
            A module that is interned from another environment already, and so forbids that.
        """
        if self._home.get(root) is not environment:
            for module, action in self.actions.items():
                if action is Action.INTERN and root_of(module) == root:
                    found = self.environment_of(module)
                    if found not in (None, environment):
                        return module
            self._home[root] = environment
            self._found.clear()
            for module in [m for m in (*self.scans, *self._sources) if root_of(m) == root]:
                self._forget_source(module)
        return None

    def _run(self) -> None:
        if self._running or not self._queue:  # what a decision brings up waits for its turn
            return
        self._running = True
        try:
            with phase("following imports", ProgressUnit.MODULES):
                while self._queue:
                    self._visit(self._queue.popleft())
        finally:
            self._running = False
            self._submodule.clear()

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
        if action is not Action.DENY and module not in self._ends:
            self._reach_parents(module)
        if action is Action.INTERN and module not in self._ends:
            self._follow(module)

    def _reach(self, edge: Edge) -> None:
        new = self.graph.add_edge(edge) and edge.kind.is_dependency
        if new and edge.imported not in _PROVIDED_ON_LOAD:
            self._queue.append(edge.imported)

    def _reach_parents(self, module: str) -> None:
        child = module
        for parent in parents(module):
            self._reach(Edge(child, parent, ImportKind.PARENT))
            child = parent

    def _follow(self, module: str) -> None:
        self._followed.add(module)
        for statement in self.scan(module).imports:
            kind = self._kind(statement)
            self._reach(Edge(module, statement.module, kind, statement.line, statement.names))
            if kind.is_dependency:
                for name in self._submodules(statement):
                    submodule = f"{statement.module}.{name}"
                    self._reach(Edge(module, submodule, kind, statement.line))

    def _kind(self, statement: ImportStatement) -> ImportKind:
        """How strong a dependency is; what is absent here is not, if conditions tell that."""
        kind = statement.kind
        has_condition = statement.is_optional or bool(statement.asked)
        # Others are not located here: a finder of the process may import something for that.
        if kind.may_be_absent or not has_condition or self.locate(statement.module) is not None:
            return kind
        is_optional = statement.is_optional or any(map(self.tells_presence, statement.asked))
        return ImportKind.GUARDED if is_optional else kind

    def _submodules(self, statement: ImportStatement) -> list[str]:
        """Those names of ``from package import names`` that are modules, not attributes."""
        names = statement.names
        if names == ("*",):
            names = self.scan(statement.module).exported or ()
        return [name for name in names if self._leads_to_submodule(statement.module, name)]

    def _leads_to_submodule(self, package: str, name: str) -> bool:
        """The same for all who ask in one run: what everybody takes is looked up once."""
        submodule = f"{package}.{name}"
        if submodule not in self._submodule:
            self._submodule[submodule] = self._is_submodule(package, name, submodule)
        return self._submodule[submodule]

    def _is_submodule(self, package: str, name: str, submodule: str) -> bool:
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
