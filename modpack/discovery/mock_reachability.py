"""Whether anything in a package can call a function, judged by names.

A function is dead only if nothing that can run mentions its name. Whatever cannot be told counts
as a call: code outside the package, decorators, names that are put together at run time.

Where packaged code uses the names of modules that were mocked, without running any of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

from modpack.core.graph import DependencyGraph, Edge
from modpack.core.names import root_of
from modpack.core.plan import NameUse, UseKind
from modpack.core.process import collection_paused
from modpack.core.scan import ImportKind
from modpack.discovery.import_scanner import scan_source
from modpack.discovery.mock_classes import BaseFinder, Takers, Texts
from modpack.discovery.mock_names import Lead, StandIn, World
from modpack.discovery.mock_scopes import ModuleTable, NameScope, Reference, Unit
from modpack.discovery.mock_usage_reader import read_table

_PLAIN_HOMES = frozenset({"abc", "typing", "enum", "collections", "builtins", "dataclasses"})
"""Modules whose classes call no method of a derived class but those with names like __this__."""
_QUIET_ROOTS = frozenset({"torch", *_PLAIN_HOMES})
"""Packages whose classes keep no list of the classes that are derived from them."""
_MOST_PARSED = 4_000_000
"""How much text is parsed before everything else counts as live."""

Read = Callable[[str], ModuleTable | None]
"""Gives the table of a module; None if it cannot be parsed."""


class _Node(NamedTuple):
    """A question: is this live?

    Attributes:
        module: where a function or a class is; empty for a name.
        name: its qualified name, or the name that something mentions.
        is_class: whether it is a class.
        is_made: whether it is a function without regard to its decorators.
    """

    module: str
    name: str
    is_class: bool = False
    is_made: bool = False


@dataclass(frozen=True)
class _Answer:
    """What decides a question.

    Attributes:
        is_live: the answer, if nothing else is needed.
        all_of: questions that must all be answered with yes ...
        one_of: ... and of these at least one, if there are any.
    """

    is_live: bool = False
    all_of: tuple[_Node, ...] = ()
    one_of: tuple[_Node, ...] = ()


class Liveness:
    """Answers for the functions of one package.

    Args:
        sources: all interned modules, as for :func:`.find_uses`.
        texts: the same, to be searched.
        mocked: the mocked modules.
        read: parses a module, once.
        entry_names: module and qualified name of what saved objects name; with an empty name, all
            of a module.
    """

    def __init__(
        self,
        sources: Mapping[str, tuple[bytes, bool]],
        texts: Texts,
        mocked: Collection[str],
        read: Read,
        entry_names: Collection[tuple[str, str]],
    ) -> None:
        self._sources = sources
        self._read = read
        self._bases = BaseFinder(read, sources, mocked)
        self._entries = frozenset(entry_names)
        self._answers: dict[_Node, _Answer] = {}
        self._askers: dict[_Node, list[_Node]] = defaultdict(list)
        self._live: set[_Node] = set()
        self._parsed: set[str] = set()
        self._parsed_bytes = 0
        self._texts = texts
        self._entry_classes: frozenset[NameScope] | None = None

    def is_live(self, module: str, unit: str) -> bool:
        """Whether anything can call a function; code that is in no function always runs."""
        table = self._read(module)
        if not unit or table is None or unit not in table.units:
            return True
        return self._is_so(_Node(module, unit))

    def is_called_later(self, module: str, name: str) -> bool:
        """Whether anything can call what a mock decorates, or what derives from a mocked class.

        Args:
            module: where it is.
            name: its qualified name. Calls of a class that the package itself makes are uses of
                their own: only saved objects matter here.
        """
        table = self._read(module)
        body = table.classes.get(name) if table is not None else None
        if body is not None:
            return self._is_entry(module, name) or body in self._classes_of_entries()
        is_known = table is not None and name in table.units
        return is_known and self._is_so(_Node(module, name, is_made=True))

    def _is_so(self, root: _Node) -> bool:
        while root not in self._live:
            waiting = self._open_questions(root)
            if not waiting:
                return False
            for node in waiting:
                if self._is_too_much():
                    return True
                self._conclude(node, self._answer(node))
        return True

    def _open_questions(self, root: _Node) -> list[_Node]:
        """The questions behind one that were not asked yet; none of them matters if it is empty."""
        found, seen, waiting = [], {root}, [root]
        while waiting:
            node = waiting.pop()
            answer = self._answers.get(node)
            if answer is None:
                found.append(node)
                continue
            for other in (*answer.all_of, *answer.one_of):
                if other not in seen and other not in self._live:
                    seen.add(other)
                    waiting.append(other)
        return found

    def _conclude(self, node: _Node, answer: _Answer) -> None:
        """Mark as live what follows from one more answer, and nothing else."""
        self._answers[node] = answer
        for other in (*answer.all_of, *answer.one_of):
            self._askers[other].append(node)
        news = [node]
        while news:
            node = news.pop()
            if node not in self._live and self._follows(self._answers[node]):
                self._live.add(node)
                news += self._askers[node]

    def _follows(self, answer: _Answer) -> bool:
        if answer.is_live:
            return True
        if not (answer.all_of or answer.one_of) or not self._live.issuperset(answer.all_of):
            return False
        return not answer.one_of or not self._live.isdisjoint(answer.one_of)

    def _is_too_much(self) -> bool:
        return self._parsed_bytes > _MOST_PARSED

    # -- single questions --------------------------------------------------------------------

    def _answer(self, node: _Node) -> _Answer:
        if not node.module:
            return self._mentioned(node.name)
        table = self._read(node.module)
        if table is None:
            return _Answer(is_live=True)
        if node.is_class:
            return self._of_class(node, table.classes[node.name])
        return self._of_unit(node, table.units[node.name])

    def _of_unit(self, node: _Node, unit: Unit) -> _Answer:
        named = () if self._is_called_from_outside(node, unit) else (_Node("", unit.name),)
        if unit.body is None:
            return _Answer(is_live=not named, one_of=named)
        return _Answer(all_of=(_class_node(unit.body),), one_of=named)

    def _is_called_from_outside(self, node: _Node, unit: Unit) -> bool:
        if (
            self._is_handed_on(node, unit)
            or _is_dunder(unit.name)
            or self._is_entry(node.module, node.name)
        ):
            return True
        if unit.body is None:
            return False
        if unit.body in self._classes_of_entries():
            return True
        outside = self._bases.bases_of(unit.body).outside
        return any(root_of(name) not in _PLAIN_HOMES for name in outside)

    def _is_handed_on(self, node: _Node, unit: Unit) -> bool:
        """Whether a decorator may give the function to somebody who calls it."""
        return unit.is_decorated and not node.is_made

    def _of_class(self, node: _Node, body: NameScope) -> _Answer:
        statement = body.definition
        bases = self._bases.bases_of(body)
        is_known_outside = (
            self._is_entry(node.module, node.name)
            or body in self._classes_of_entries()
            or bool(statement is not None and (statement.decorator_list or statement.keywords))
            or any(root_of(name) not in _QUIET_ROOTS for name in bases.outside)
            or any("__init_subclass__" in base.bindings for base in bases.inside)
        )
        if is_known_outside:
            return _Answer(is_live=True)
        return _Answer(one_of=(_Node("", node.name.rpartition(".")[2]),))

    def _mentioned(self, name: str) -> _Answer:
        """Whether code that is live mentions a name."""
        modules = self._texts.mentioning(name)
        if modules is None or self._texts.may_be_computed(name):
            return _Answer(is_live=True)
        places: list[_Node] = []
        for module, unit in self._find_mentions(modules, name):
            place = _Node(module, unit)
            if not unit or place in self._live:
                return _Answer(is_live=True)
            places.append(place)
        return _Answer(one_of=tuple(places))

    def _find_mentions(self, modules: Iterable[str], name: str) -> Iterator[tuple[str, str]]:
        """The functions that mention a name, by module; an empty one is a module's own code."""
        for module in modules:
            table = self._read(module)
            if module not in self._parsed:
                self._parsed.add(module)
                self._parsed_bytes += len(self._sources[module][0])
            if table is not None:
                yield from ((module, unit) for unit in sorted(table.mentions.get(name, ())))
            if self._is_too_much():
                yield module, ""

    # -- what saved objects name -------------------------------------------------------------

    def _is_entry(self, module: str, qualname: str) -> bool:
        if (module, "") in self._entries:
            return True
        parts = qualname.split(".")
        beginnings = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        return any((module, beginning) in self._entries for beginning in beginnings)

    def _classes_of_entries(self) -> frozenset[NameScope]:
        """The classes of saved objects, and those that they derive from."""
        if self._entry_classes is None:
            found: set[NameScope] = set()
            for module, name in self._entries:
                table = self._read(module) if module in self._sources else None
                body = table.classes.get(name) if table is not None else None
                if body is not None:
                    found.update((body, *self._bases.bases_of(body).inside))
            self._entry_classes = frozenset(found)
        return self._entry_classes


def _class_node(body: NameScope) -> _Node:
    return _Node(body.module, body.label, is_class=True)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


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
