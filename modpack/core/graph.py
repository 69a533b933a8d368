"""The dependency graph, import chains in it, and module locations."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
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
        return imported in self._out.get(importer, ()) and self._runs(importer, imported)

    def edges_between(self, importer: str, imported: str) -> tuple[Edge, ...]:
        """Return the parallel edges between two nodes."""
        return tuple(self._out.get(importer, {}).get(imported, ()))

    def mark_root(self, node: str) -> None:
        """Mark a node that the user saved; chains start at roots."""
        self.add_node(node)
        self._roots[node] = None

    def roots(self) -> tuple[str, ...]:
        """Return the nodes that the user saved."""
        return tuple(self._roots)

    def reachable_nodes(self, *, at_once: bool = False) -> frozenset[str]:
        """Return the nodes that are reachable from the roots, including the roots.

        Args:
            at_once: Whether to follow only imports that run, and must succeed, when their importer
                is imported.
        """
        follows = self._runs_at_once if at_once else self._runs
        reached, todo = set(self._roots), list(self._roots)
        while todo:
            importer = todo.pop()
            for imported in self._out[importer]:
                if imported not in reached and follows(importer, imported):
                    reached.add(imported)
                    todo.append(imported)
        return frozenset(reached)

    def distances_to(self, target: str) -> dict[str, int]:
        """Return the distances to a node from all nodes that depend on it.

        Args:
            target: Target node, at distance 0.
        """
        if target not in self._out:
            return {}
        # Breadth first, so that the first distance of a node is the shortest.
        distances = {target: 0}
        queue = deque([target])
        while queue:
            node = queue.popleft()
            for importer in self._in[node]:
                if importer not in distances and self._runs(importer, node):
                    distances[importer] = distances[node] + 1
                    queue.append(importer)
        return distances

    def shortest_path(self, target: str, sources: Iterable[str] | None = None) -> tuple[str, ...]:
        """Return the shortest import chain to a node.

        Args:
            target: Last node of the chain.
            sources: Possible first nodes. Default: the roots.

        Returns:
            The chain including both ends; empty if there is none.
        """
        if target not in self._out:
            return ()
        starts = set(self.roots() if sources is None else sources)
        # Backwards from the target, because the chain may start at any root.
        next_nodes: dict[str, str | None] = {target: None}
        queue = deque([target])
        while queue:
            node = queue.popleft()
            if node in starts:
                return tuple(_follow(node, next_nodes))
            for importer in self._in[node]:
                if importer not in next_nodes and self._runs(importer, node):
                    next_nodes[importer] = node
                    queue.append(importer)
        return ()

    def distances(self) -> dict[str, int]:
        """Return the length of the shortest import chain to each node that a root leads to.

        One search finds all of them, where :meth:`shortest_path` searches for each.

        >>> graph = DependencyGraph()
        >>> graph.mark_root("model")
        >>> _ = graph.add_edge(Edge("model", "shop", ImportKind.REQUIRED))
        >>> graph.distances()
        {'model': 0, 'shop': 1}
        """
        distances = dict.fromkeys(self._roots, 0)
        queue = deque(distances)
        while queue:
            importer = queue.popleft()
            for imported in self._out[importer]:
                if imported not in distances and self._runs(importer, imported):
                    distances[imported] = distances[importer] + 1
                    queue.append(imported)
        return distances

    def between(self, source: str, target: str) -> DependencyGraph:
        """Return the subgraph of all paths from ``source`` to ``target``."""
        # A node is on a path if it is reached from both ends. The paths themselves are not listed:
        # their number can grow exponentially with the size of the graph.
        forward = _reached(source, self._out) if source in self._out else set()
        backward = _reached(target, self._in) if target in self._in else set()
        wanted = forward & backward
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

    def _runs(self, importer: str, imported: str) -> bool:
        return any(edge.kind.is_dependency for edge in self._out[importer][imported])

    def _runs_at_once(self, importer: str, imported: str) -> bool:
        return any(edge.kind.runs_at_once for edge in self._out[importer][imported])


def _follow(node: str, next_nodes: dict[str, str | None]) -> Iterator[str]:
    following: str | None = node
    while following is not None:
        yield following
        following = next_nodes[following]


def _reached(start: str, neighbors: dict[str, dict[str, _Edges]]) -> set[str]:
    reached, todo = {start}, [start]
    while todo:
        for node in neighbors[todo.pop()]:
            if node not in reached:
                reached.add(node)
                todo.append(node)
    return reached


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
