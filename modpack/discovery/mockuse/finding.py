"""Where packaged code uses the names of modules that were mocked, without running any of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

from modpack.core.garbage import collection_paused
from modpack.core.graph import DependencyGraph, Edge
from modpack.core.imports import ImportKind
from modpack.core.usage import NameUse, UseKind
from modpack.discovery.mockuse.liveness import Liveness
from modpack.discovery.mockuse.reading import read_table
from modpack.discovery.mockuse.table import ModuleTable, Reference
from modpack.discovery.mockuse.takers import Takers
from modpack.discovery.mockuse.texts import Texts
from modpack.discovery.mockuse.values import Lead, StandIn
from modpack.discovery.mockuse.world import World
from modpack.discovery.source import scan_source

__all__ = ["Sources", "callable_from_outside", "find_uses"]

Sources: TypeAlias = Mapping[str, tuple[bytes, bool]]
"""Interned modules: the source, and whether it is that of a package."""

_STATEMENTS = (ImportKind.REQUIRED, ImportKind.FUNCTION, ImportKind.GUARDED, ImportKind.DYNAMIC)
_KINDS = list(UseKind)


@collection_paused()  # the search went through all of torch, which took half of the time
def find_uses(
    sources: Sources,
    mocked: Collection[str],
    entry_names: Collection[tuple[str, str]] = (),
    graph: DependencyGraph | None = None,
) -> tuple[NameUse, ...]:
    r"""Find every place where interned modules use a name of a mocked one.

    A name is followed from its import through assignments, attributes, classes and functions,
    and from module to module, in circles as well. Reads the sources, and only those that may lead
    to a mock or call what does.

    Args:
        sources: all interned modules.
        mocked: the mocked modules.
        entry_names: module and qualified name of classes and functions that saved objects and
            hooks name: they can be called from outside the package. With an empty name, everything
            in the module can.
        graph: who imports whom, if that is known; it is read off the sources otherwise.

    Returns:
        The uses, by mocked module, importer and line.

    >>> source = b"import tracker\n\ndef report(x):\n    tracker.log(x)\n"
    >>> (use,) = find_uses({"net": (source, False)}, ["tracker"], [("net", "report")])
    >>> use.name, use.line, use.kind.value, use.scope, use.is_live
    ('log', 4, 'function', 'report', True)
    """
    if not mocked:
        return ()
    graph = graph if graph is not None else _graph_of(sources)
    texts = Texts(sources)
    search = _Search(sources, frozenset(mocked), Takers(sources, texts, graph))
    search.run()
    liveness = Liveness(sources, texts, mocked, search.read, entry_names)
    found = dict.fromkeys([*search.uses(liveness), *_of_saved_objects(graph, frozenset(mocked))])
    return tuple(sorted(found, key=_order))


def callable_from_outside(graph: DependencyGraph) -> list[tuple[str, str]]:
    """What users of a package can call, as :func:`find_uses` wants it.

    Args:
        graph: its dependency graph. Saved objects name classes and functions; of a module that was
            saved by name, everything can be called.
    """
    named = [
        (edge.imported, name)
        for edge in graph.edges()
        if edge.kind is ImportKind.PICKLE
        for name in edge.names
    ]
    return [*named, *((root, "") for root in graph.roots() if not root.startswith("<"))]


def _is_live(module: str, reference: Reference, liveness: Liveness) -> bool:
    in_function = reference.kind is UseKind.FUNCTION
    return not in_function or liveness.is_live(module, reference.scope.unit)


def _is_called_later(module: str, reference: Reference, liveness: Liveness) -> bool:
    makes = reference.kind in (UseKind.DECORATOR, UseKind.BASE_CLASS) and reference.target
    return bool(makes) and liveness.is_called_later(module, reference.target)


def _of_saved_objects(graph: DependencyGraph, mocked: frozenset[str]) -> Iterator[NameUse]:
    """Functions that travel by their source, inside saved objects: what they import, they use."""
    for edge in graph.edges():
        is_import = edge.kind in _STATEMENTS and edge.imported in mocked
        if not is_import or not edge.importer.startswith("<"):
            continue
        for name in edge.names or [""]:
            path = f"{edge.imported}.{name}"
            module, rest = (path, "") if path in mocked else (edge.imported, name)
            yield NameUse(module, rest, edge.importer, edge.line or 1, UseKind.FUNCTION)


def _order(use: NameUse) -> tuple[str, str, int, str, int]:
    return (use.module, use.importer, use.line, use.name, _KINDS.index(use.kind))


def _graph_of(sources: Sources) -> DependencyGraph:
    graph = DependencyGraph()
    for module, (source, is_package) in sources.items():
        for each in scan_source(source, module, is_package).imports:
            graph.add_edge(Edge(module, each.module, each.kind, each.line, each.names))
            for name in each.names:
                graph.add_edge(Edge(module, f"{each.module}.{name}", each.kind, each.line))
    return graph


class _Search:
    """Follows the names of mocks from module to module, until nothing new comes of it."""

    def __init__(self, sources: Sources, mocked: frozenset[str], takers: Takers) -> None:
        self._sources = sources
        self._mocked = mocked
        self._takers = takers
        self._world = World(mocked, sources)
        self._known: dict[str, ModuleTable | None] = {}
        self._queue: dict[str, None] = {}
        self._names: dict[str, set[str]] = defaultdict(set)
        self._holders: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self._words: set[str] = set()

    def read(self, module: str) -> ModuleTable | None:
        """The table of an interned module; None if it cannot be parsed."""
        if module not in self._known:
            source, is_package = self._sources[module]
            self._known[module] = read_table(source, module, is_package)
        return self._known[module]

    def run(self) -> None:
        """Look at all modules that the names of mocks reach."""
        for mock in sorted(self._mocked):
            self._words.add(mock.rpartition(".")[2])
            self._enqueue(self._takers.of_mock(mock))
        while self._queue:
            module = next(iter(self._queue))
            del self._queue[module]
            self._look_at(module)

    def uses(self, liveness: Liveness) -> Iterator[NameUse]:
        """Every use in the modules that were looked at."""
        self._world.forget_locals()
        for module, table in self._world.tables.items():
            for reference in table.references:
                if self._world.comes_of_use(reference.node, reference.scope):
                    continue  # which is a use by itself
                values = self._world.value_of(reference.node, reference.scope)
                use = partial(
                    NameUse,
                    importer=module,
                    line=reference.line,
                    kind=reference.kind,
                    scope=reference.scope.label,
                )
                for value, via in values.items():
                    if isinstance(value, StandIn):
                        yield use(
                            value.module,
                            value.name,
                            is_live=_is_live(module, reference, liveness),
                            via=tuple(each for each in via if each != module),
                            is_called_later=_is_called_later(module, reference, liveness),
                        )

    def _enqueue(self, modules: Iterable[str]) -> None:
        self._queue.update(dict.fromkeys(sorted(modules)))

    def _look_at(self, module: str) -> None:
        """Work out what a module's names stand for, and who is to be looked at for that."""
        table = self.read(module)
        if table is None:
            return
        self._world.tables[module] = table
        for name in self._world.settle(module):
            kind = self._world.leads_to(module, name)
            if kind is Lead.STAND_IN:
                self._tell(module, name)
            elif kind is Lead.MODULE:
                self._hold(module, name)
        self._fetch()

    def _tell(self, module: str, name: str) -> None:
        """A name leads to a mock: whoever may take it is looked at, directly or through others."""
        self._names[module].add(name)
        self._words.update((name, module.rpartition(".")[2]))
        self._enqueue(self._takers.of_name(module, name))
        for holder, alias in self._holders[module]:
            self._enqueue(self._takers.that_write(self._takers.of_name(holder, alias), [name]))

    def _hold(self, holder: str, alias: str) -> None:
        """A name is another module: what leads to a mock there can be taken from here."""
        for module in self._world.modules_of(holder, alias):
            self._holders[module].add((holder, alias))
            if self._names[module]:
                takers = self._takers.of_name(holder, alias)
                self._enqueue(self._takers.that_write(takers, self._names[module]))

    def _fetch(self) -> None:
        """Look at the modules of which names were wanted that may lead to a mock."""
        for module, names in self._world.wanted.items():
            is_new = module in self._sources and module not in self._world.tables
            if is_new and ("*" in names or not self._words.isdisjoint(names)):
                self._enqueue([module])
