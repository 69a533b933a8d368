"""The walk: from what was saved to every module that it leads to.

A worklist, not a recursion: a chain of ten thousand imports is as good as any. The walk
finds and reads modules; what happens to each is for the caller to decide.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from modpack.core.actions import Action
from modpack.core.graph import DependencyGraph, Edge
from modpack.core.imports import ImportKind, ImportStatement
from modpack.core.location import CodeKind, Environment, Location
from modpack.core.names import parents, root_of
from modpack.core.progress import Unit, advance, phase
from modpack.discovery.modules import Modules, Scan
from modpack.discovery.source import scan_source

__all__ = ["PROVIDED_ON_LOAD", "Ahead", "Coming", "Scan", "Walker"]

PROVIDED_ON_LOAD = frozenset({"torch_package_importer", "_modpack_mock"})
"""Names that packaged code may import although no module of theirs is ever found: the
importer under the ancestor's name, and the runtime of stand-ins, which comes with them."""

Decide = Callable[[str], Action | None]
"""Decides a module that was reached; None leaves it undecided for now."""


@dataclass(frozen=True)
class Coming:
    """A source that will be asked for.

    Attributes:
        file: where it is.
        module: the module's path.
        is_package: whether it is a package's ``__init__``.
    """

    file: str
    module: str
    is_package: bool


class Ahead(Protocol):
    """Has sources scanned before the walk comes to them."""

    def is_worth_it(self, waiting: int) -> bool:
        """Whether it would save time to say what comes, if so many modules wait."""

    def expect(self, coming: Sequence[Coming]) -> None:
        """Learn what comes, in this order."""

    def end(self) -> None:
        """Learn that nothing comes any more."""


class Walker(Modules):
    """Reaches modules, in breadth-first order, and keeps the evidence.

    Args:
        environments: where modules come from, first choice first.
        decide: called once for each module that is reached, and again for one that it left
            undecided when new evidence, or :meth:`retry`, brings it up.
        scan: reads sources.
        ahead: has them read earlier, if many wait.
        foresee: whether a module will probably be interned; asked only for ``ahead``.

    Attributes:
        graph: who imports whom.
        actions: what was decided.
        undecided: what was reached and not decided, in order.
    """

    def __init__(
        self,
        environments: Sequence[Environment],
        decide: Decide,
        scan: Scan = scan_source,
        ahead: Ahead | None = None,
        foresee: Callable[[str], bool] = lambda _: True,
    ) -> None:
        super().__init__(environments, scan)
        self.graph = DependencyGraph()
        self.actions: dict[str, Action] = {}
        self.undecided: dict[str, None] = {}
        self._decide = decide
        self._ahead = ahead
        self._foresee = foresee
        self._told = 0
        self._submodule: dict[str, bool] = {}
        self._ends: set[str] = set()
        self._followed: set[str] = set()
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
            self._take_from(root, environment)
        return None

    def _run(self) -> None:
        if self._running:  # deciding a module brought up others: they wait for their turn
            return
        if not self._queue:
            return
        self._running = True
        try:
            with phase("following imports", Unit.MODULES):
                while self._queue:
                    self._look_ahead()
                    self._visit(self._queue.popleft())
        finally:
            self._running = False
            self._submodule.clear()
            if self._ahead is not None:
                self._ahead.end()

    def _look_ahead(self) -> None:
        """Tell what waits, each module once: what is found meanwhile comes behind all of it."""
        self._told = max(0, self._told - 1)
        waiting = len(self._queue)
        if self._ahead is not None and not self._told and self._ahead.is_worth_it(waiting):
            self._told = waiting
            self._ahead.expect(list(self._coming()))

    def _coming(self) -> Iterator[Coming]:
        """The sources that will be scanned, if the modules that wait are decided as expected."""
        for module in self._queue:
            if module in self.actions or module in self.scans or module in self._provided:
                continue
            location = self.locate(module)
            if location is None or location.kind is not CodeKind.SOURCE or not location.file:
                continue
            if self._foresee(module):
                yield Coming(location.file, module, location.is_package)

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
        if new and edge.imported not in PROVIDED_ON_LOAD:
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
        known = self._submodule.get(submodule)
        if known is None:
            known = self._submodule[submodule] = self._is_submodule(package, name)
        return known

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
