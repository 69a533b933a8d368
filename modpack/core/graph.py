"""The dependency graph: who imports whom, on what evidence."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from modpack.core.imports import ImportKind

__all__ = ["DependencyGraph", "Edge"]


class Edge(NamedTuple):
    """One piece of evidence that ``importer`` depends on ``imported``.

    Attributes:
        importer: a module path, or the name of a resource (``<model/model.pkl>``).
        imported: a module path.
        kind: how strong the dependency is.
        line: 1-based line in the importer's source, if there is one.
        names: the names taken from the module, where they are known.
    """

    importer: str
    imported: str
    kind: ImportKind
    line: int | None = None
    names: tuple[str, ...] = ()


_Edges: TypeAlias = tuple[Edge] | dict[Edge, None]
"""Parallel edges, in order: mostly one, which costs a third as a tuple; at times very many."""


class DependencyGraph:
    """A directed graph of modules and resources with labelled, parallel edges.

    Keeps insertion order throughout, so that what is made from it is reproducible.
    Searches are breadth-first and linear in the size of the graph, cycles included.
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
        """Every node, in the order in which they were added."""
        return iter(self._out)

    def edges(self) -> Iterator[Edge]:
        """Every edge, grouped by importer."""
        for targets in self._out.values():
            for edges in targets.values():
                yield from edges

    def add_node(self, node: str) -> None:
        """Add a node; adding it twice changes nothing."""
        if node not in self._out:
            self._out[node] = {}
            self._in[node] = {}

    def add_edge(self, edge: Edge) -> bool:
        """Add an edge and its ends; tells whether it was new."""
        importer, imported = edge.importer, edge.imported
        self.add_node(importer)
        self.add_node(imported)
        edges = self._out[importer].get(imported)
        if edges is None:
            self._out[importer][imported] = self._in[imported][importer] = (edge,)
            return True
        if isinstance(edges, tuple):
            edges = dict.fromkeys(edges)
            self._out[importer][imported] = self._in[imported][importer] = edges
        known = len(edges)
        edges[edge] = None
        return len(edges) > known

    def drop_edges_from(self, importer: str) -> None:
        """Forget what a node imports; the nodes stay."""
        for imported in self._out.get(importer, ()):
            del self._in[imported][importer]
        if importer in self._out:
            self._out[importer] = {}

    def successors(self, node: str) -> tuple[str, ...]:
        """What a node imports."""
        return tuple(self._out.get(node, ()))

    def predecessors(self, node: str) -> tuple[str, ...]:
        """Who imports a node."""
        return tuple(self._in.get(node, ()))

    def edges_to(self, node: str) -> tuple[Edge, ...]:
        """Every edge that ends in a node."""
        return tuple(edge for edges in self._in.get(node, {}).values() for edge in edges)

    def depends(self, importer: str, imported: str) -> bool:
        """Whether code that can run makes one node depend on another."""
        return imported in self._out.get(importer, ()) and self._runs(importer, imported)

    def edges_between(self, importer: str, imported: str) -> tuple[Edge, ...]:
        """The evidence for one dependency."""
        return tuple(self._out.get(importer, {}).get(imported, ()))

    def mark_root(self, node: str) -> None:
        """Say that chains start here: the user asked for this node."""
        self.add_node(node)
        self._roots[node] = None

    def roots(self) -> tuple[str, ...]:
        """The nodes where chains start: what the user saved."""
        return tuple(self._roots)

    def reached(self, *, at_once: bool = False) -> frozenset[str]:
        """The nodes that chains of dependencies lead to from the roots, roots included.

        Args:
            at_once: only follow what runs as soon as its importer is imported, and must succeed.
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
        """How many steps lead to a node, by every node that chains of dependencies start from.

        Args:
            target: where the chains end; it is no step away from itself.
        """
        if target not in self._out:
            return {}
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
        """The shortest chain of importers that leads to a node.

        Args:
            target: where the chain ends.
            sources: where it may start; the graph's roots by default.

        Returns:
            The chain with both ends; empty if there is none.
        """
        if target not in self._out:
            return ()
        starts = set(self.roots() if sources is None else sources)
        towards: dict[str, str | None] = {target: None}
        queue = deque([target])
        while queue:
            node = queue.popleft()
            if node in starts:
                return tuple(_follow(node, towards))
            for importer in self._in[node]:
                if importer not in towards and self._runs(importer, node):
                    towards[importer] = node
                    queue.append(importer)
        return ()

    def between(self, source: str, target: str) -> DependencyGraph:
        """The part of the graph that lies on some path from ``source`` to ``target``."""
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
        """The graph in the DOT language (https://graphviz.org/doc/info/lang.html)."""
        lines = ["digraph G {", "rankdir = LR;", "node [shape=box];"]
        for importer, targets in self._out.items():
            lines.extend(f"{_quoted(importer)} -> {_quoted(imported)};" for imported in targets)
        return "\n".join([*lines, "}"]) + "\n"

    def _runs(self, importer: str, imported: str) -> bool:
        return any(edge.kind.is_dependency for edge in self._out[importer][imported])

    def _runs_at_once(self, importer: str, imported: str) -> bool:
        return any(edge.kind.runs_at_once for edge in self._out[importer][imported])


def _follow(node: str, towards: dict[str, str | None]) -> Iterator[str]:
    following: str | None = node
    while following is not None:
        yield following
        following = towards[following]


def _reached(start: str, neighbours: dict[str, dict[str, _Edges]]) -> set[str]:
    reached, todo = {start}, [start]
    while todo:
        for node in neighbours[todo.pop()]:
            if node not in reached:
                reached.add(node)
                todo.append(node)
    return reached


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
