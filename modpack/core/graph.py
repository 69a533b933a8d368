"""The dependency graph, import chains in it, and module locations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from typing import Annotated, NamedTuple, Protocol, TypeAlias

from modpack.core.codec import Line
from modpack.core.names import why_too_long
from modpack.core.scan import ImportKind


def _why_invalid_node(name: str) -> str | None:
    return None if name.startswith("<") else why_too_long(name)


Node: TypeAlias = Annotated[str, _why_invalid_node]
"""A module path, or a resource such as ``<model/model.pkl>``, whose name may contain any dots."""


class Edge(NamedTuple):
    """One piece of evidence that ``importer`` depends on ``imported``.

    Attributes:
        importer: Module path, or the name of a resource (``<model/model.pkl>``).
        imported: Module path.
        kind: Strength of the dependency.
        line: 1-based line in the importer's source, if any.
        names: Names imported from the module, if known.
    """

    importer: Node
    imported: Node
    kind: ImportKind
    line: Line | None = None
    names: tuple[str, ...] = ()


_Edges: TypeAlias = tuple[Edge] | dict[Edge, None]
"""Parallel edges, in order. Most nodes have one, and a tuple takes a third of a dict's memory."""


class DependencyGraph:
    """A directed graph of modules and resources with labeled, parallel edges.

    All iteration is in insertion order, so results are reproducible. Searches are breadth-first and
    take linear time, even in graphs with cycles.
    """

    def __init__(self) -> None:
        self._out: dict[str, dict[str, _Edges]] = {}
        self._in: dict[str, dict[str, _Edges]] = {}
        self._roots: dict[str, None] = {}
        self._reachable: dict[bool, frozenset[str]] = {}

    def __contains__(self, node: object) -> bool:
        return node in self._out

    def __len__(self) -> int:
        return len(self._out)

    def nodes(self) -> Iterator[str]:
        """Return all nodes in insertion order."""
        return iter(self._out)

    def edges(self) -> Iterator[Edge]:
        """Yield all edges, grouped by importer."""
        for targets in self._out.values():
            for edges in targets.values():
                yield from edges

    def add_node(self, node: str) -> None:
        """Add a node, if it is new."""
        if node not in self._out:
            self._out[node] = {}
            self._in[node] = {}

    def add_edge(self, edge: Edge) -> bool:
        """Add an edge and its nodes; return whether the edge is new."""
        self._reachable.clear()
        importer, imported = edge.importer, edge.imported
        self.add_node(importer)
        self.add_node(imported)
        edges = self._out[importer].get(imported)
        if edges is None:
            self._out[importer][imported] = self._in[imported][importer] = (edge,)
            return True
        if isinstance(edges, tuple):
            # One dict for both directions, so that an edge is added to both of them at once.
            edges = dict.fromkeys(edges)
            self._out[importer][imported] = self._in[imported][importer] = edges
        known = len(edges)
        edges[edge] = None
        return len(edges) > known

    def drop_edges_from(self, importer: str) -> None:
        """Remove a node's outgoing edges, but not the nodes they lead to."""
        self._reachable.clear()
        # The nodes stay, because other importers may lead to them.
        for imported in self._out.get(importer, ()):
            del self._in[imported][importer]
        if importer in self._out:
            self._out[importer] = {}

    def successors(self, node: str) -> tuple[str, ...]:
        """Return the nodes that a node imports."""
        return tuple(self._out.get(node, ()))

    def predecessors(self, node: str) -> tuple[str, ...]:
        """Return the importers of a node."""
        return tuple(self._in.get(node, ()))

    def edges_to(self, node: str) -> tuple[Edge, ...]:
        """Return all edges to a node."""
        return tuple(edge for edges in self._in.get(node, {}).values() for edge in edges)

    def depends(self, importer: str, imported: str) -> bool:
        """Return whether a node depends on another through code that can run."""
        return _runs(self._out.get(importer, {}).get(imported, ()))

    def edges_between(self, importer: str, imported: str) -> tuple[Edge, ...]:
        """Return the parallel edges between two nodes."""
        return tuple(self._out.get(importer, {}).get(imported, ()))

    def mark_root(self, node: str) -> None:
        """Mark a node that the user saved; chains start at roots."""
        self.add_node(node)
        self._roots[node] = None
        self._reachable.clear()

    def roots(self) -> tuple[str, ...]:
        """Return the nodes that the user saved."""
        return tuple(self._roots)

    def reachable_nodes(self, *, at_once: bool = False) -> frozenset[str]:
        """Return the nodes that are reachable from the roots, including the roots.

        Args:
            at_once: Whether to follow only imports that run, and must succeed, when their importer
                is imported.
        """
        # A plan asks five times.
        if at_once not in self._reachable:
            follows = _runs_at_once if at_once else _runs
            found = frozenset(node for node, _ in _search(self._roots, self._out, follows))
            self._reachable[at_once] = found
        return self._reachable[at_once]

    def distances_to(self, target: str) -> dict[str, int]:
        """Return the distances to a node from all nodes that depend on it.

        Args:
            target: Target node, at distance 0.
        """
        return chain_lengths(dict(_search([target], self._in)))

    def shortest_path(self, target: str, sources: Iterable[str] | None = None) -> tuple[str, ...]:
        """Return the shortest import chain to a node.

        Args:
            target: Last node of the chain.
            sources: Possible first nodes. Default: the roots.

        Returns:
            The chain including both ends; empty if there is none.
        """
        starts = set(self.roots() if sources is None else sources)
        # Backwards from the target, because the chain may start at any root.
        next_nodes: dict[str, str | None] = {}
        for node, following in _search([target], self._in):
            next_nodes[node] = following
            if node in starts:
                return tuple(_follow(node, next_nodes))
        return ()

    def search(self, starts: Iterable[str]) -> Iterator[tuple[str, str | None]]:
        """Yield the nodes that some nodes depend on, the nearest first.

        Args:
            starts: Where to start. These come first.

        Yields:
            A node, and the previous one on the shortest chain to it, if any.
        """
        return _search(starts, self._out)

    def distances(self) -> dict[str, int]:
        """Return the length of the shortest import chain to each node that a root leads to.

        One search finds all of them, where :meth:`shortest_path` searches for each.

        >>> graph = DependencyGraph()
        >>> graph.mark_root("model")
        >>> _ = graph.add_edge(Edge("model", "shop", ImportKind.REQUIRED))
        >>> graph.distances()
        {'model': 0, 'shop': 1}
        """
        return chain_lengths(dict(self.search(self._roots)))

    def between(self, source: str, target: str) -> DependencyGraph:
        """Return the subgraph of all paths from ``source`` to ``target``."""
        # A node is on a path if it is reached from both ends. The paths themselves are not listed:
        # their number can grow exponentially with the size of the graph.
        forward, backward = _search([source], self._out, bool), _search([target], self._in, bool)
        wanted = dict(forward).keys() & dict(backward).keys()
        part = DependencyGraph()
        part.mark_root(source)
        for edge in self.edges():
            if edge.importer in wanted and edge.imported in wanted:
                part.add_edge(edge)
        return part

    def to_dot(self) -> str:
        """Return the graph in the DOT language (https://graphviz.org/doc/info/lang.html)."""
        lines = ["digraph G {", "rankdir = LR;", "node [shape=box];"]
        for importer, targets in self._out.items():
            lines.extend(f"{_quoted(importer)} -> {_quoted(imported)};" for imported in targets)
        return "\n".join([*lines, "}"]) + "\n"


def _runs(edges: Iterable[Edge]) -> bool:
    return any(edge.kind.is_dependency for edge in edges)


def _runs_at_once(edges: Iterable[Edge]) -> bool:
    return any(edge.kind.runs_at_once for edge in edges)


def _follow(node: str, next_nodes: dict[str, str | None]) -> Iterator[str]:
    following: str | None = node
    while following is not None:
        yield following
        following = next_nodes[following]


def _search(
    starts: Iterable[str],
    neighbors: Mapping[str, Mapping[str, _Edges]],
    follows: Callable[[_Edges], bool] = _runs,
) -> Iterator[tuple[str, str | None]]:
    """Yield the nodes that a breadth-first search reaches, and where each was reached from."""
    queue: deque[tuple[str, str | None]] = deque((s, None) for s in starts if s in neighbors)
    reached = {node for node, _ in queue}
    while queue:
        node, previous = queue.popleft()
        yield node, previous
        for other, edges in neighbors[node].items():
            if other not in reached and follows(edges):
                reached.add(other)
                queue.append((other, node))


def chain_lengths(previous: Mapping[str, str | None]) -> dict[str, int]:
    """Return each node's distance from the start of its chain.

    Args:
        previous: The nodes in the order of a search, each with the previous one on its chain.
    """
    found: dict[str, int] = {}
    for node, before in previous.items():
        found[node] = 0 if before is None else found[before] + 1
    return found


def _quoted(name: str) -> str:
    # Names of resources may contain any characters.
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


class CodeKind(str, Enum):
    """The form of a module's code."""

    SOURCE = "source"
    EXTENSION = "extension"
    BYTECODE = "bytecode"
    BUILTIN = "builtin"
    NAMESPACE = "namespace"
    """A namespace package (PEP 420): a folder without ``__init__``."""
    UNKNOWN = "unknown"
    """A finder has the module, but it has neither a file nor a source."""


class Location(NamedTuple):
    """The location of a module, found without importing it.

    Attributes:
        module: Module path.
        kind: Form of the module's code.
        file: File or record that contains the module, for display.
        is_package: Whether the module can have submodules.
        search: Folders that are searched for its submodules.
    """

    module: str
    kind: CodeKind
    file: str | None = None
    is_package: bool = False
    search: tuple[str, ...] = ()


class ModuleSource(Protocol):
    """A source of modules: this interpreter, or another package.

    Finding and reading modules never executes anything.
    """

    def locate(self, module: str) -> Location | None:
        """Find a module, or return None."""

    def read_source(self, location: Location) -> bytes:
        """Return the source bytes of a module whose kind is SOURCE."""

    def live_attribute(self, module: str, name: str) -> str | None:
        """Return what a loaded module binds a name to.

        Returns:
            ``"submodule"`` or ``"attribute"``; None if the module is not loaded or does not bind
            the name.
        """

    def defining_module(self, module: str, name: str) -> str | None:
        """Return the module that defines the class or function that a loaded module binds.

        Returns:
            The defining module's path; None if the module is not loaded, does not bind the name,
            or binds it to an object of unknown origin.
        """
        return None

    def loaded(self) -> Collection[str]:
        """Return the modules known to be needed: the loaded ones, or all of a package."""
        return ()

    def lacks(self, module: str) -> bool:
        """Return whether code from this source can never import a module."""
        return False

    @property
    def is_package(self) -> bool:
        """Whether this source is a package, which may lack excluded modules."""
        return False
