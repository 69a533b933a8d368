"""The dependency graph: who imports whom, on what evidence; its chains; where modules are."""

from __future__ import annotations

import heapq
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Annotated, NamedTuple, Protocol, TypeAlias

from modpack.core.codec import Line
from modpack.core.names import why_too_long
from modpack.core.scan import ImportKind


def _why_no_node(name: str) -> str | None:
    return None if name.startswith("<") else why_too_long(name)


Node: TypeAlias = Annotated[str, _why_no_node]
"""A module path, or a saved object, whose file may have any number of dots in its name."""


class Edge(NamedTuple):
    """One piece of evidence that ``importer`` depends on ``imported``.

    Attributes:
        importer: a module path, or the name of a resource (``<model/model.pkl>``).
        imported: a module path.
        kind: how strong the dependency is.
        line: 1-based line in the importer's source, if there is one.
        names: the names taken from the module, where they are known.
    """

    importer: Node
    imported: Node
    kind: ImportKind
    line: Line | None = None
    names: tuple[str, ...] = ()


_Edges: TypeAlias = tuple[Edge] | dict[Edge, None]
"""Parallel edges, in order: mostly one, which costs a third as a tuple; at times very many."""


class DependencyGraph:
    """A directed graph of modules and resources with labeled, parallel edges.

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


def _reached(start: str, neighbors: dict[str, dict[str, _Edges]]) -> set[str]:
    reached, todo = {start}, [start]
    while todo:
        for node in neighbors[todo.pop()]:
            if node not in reached:
                reached.add(node)
                todo.append(node)
    return reached


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


_EFFORT = 40_000
_LOOKS_PER_STEP = 16
"""How many nodes of a chain are looked at in the time of one step of the search."""


@dataclass(frozen=True)
class FoundPaths:
    """Chains without a node twice, the shortest first.

    Attributes:
        paths: the first of them, each with both ends.
        more: how many were found besides.
        is_complete: whether there are no others; if not, there may be many more.
    """

    paths: tuple[tuple[str, ...], ...]
    more: int = 0
    is_complete: bool = True


def simple_paths(
    graph: DependencyGraph,
    target: str,
    sources: Sequence[str],
    most: int = 100,
    effort: int = _EFFORT,
    most_nodes: int | None = None,
) -> FoundPaths:
    """Find the chains of dependencies that lead from some nodes to another.

    There can be more of them than anybody can count: a graph of a few dozen modules may have
    millions. The search goes from the shortest to the longest and gives up in the end; what it
    has found by then is right.

    Args:
        graph: who imports whom, cycles included.
        target: where the chains end. None goes through it.
        sources: where they start.
        most: how many are wanted; further ones are counted only.
        effort: how many steps the search takes in all.
        most_nodes: how many nodes the chains that are wanted have in all, if that is limited;
            those that do not fit are counted only.

    >>> from modpack.core.graph import Edge
    >>> from modpack.core.scan import ImportKind
    >>> graph = DependencyGraph()
    >>> for edge in ("ab", "bc", "ca", "ac"):
    ...     _ = graph.add_edge(Edge(*edge, ImportKind.REQUIRED))
    >>> simple_paths(graph, "c", ["a"]).paths
    (('a', 'c'), ('a', 'b', 'c'))
    """
    search = _PathSearch(graph, target, effort)
    paths: list[tuple[str, ...]] = []
    more = 0
    room = sys.maxsize if most_nodes is None else most_nodes
    for link in search.run(sources):
        if len(paths) < most and link.depth < room:
            paths.append(link.path())
            room -= len(paths[-1])
        else:
            more += 1
    return FoundPaths(tuple(paths), more, search.effort > 0)


class _PathNode:
    """The last node of the beginning of a chain."""

    __slots__ = ("before", "depth", "lowest", "node")

    def __init__(self, node: str, before: _PathNode | None, distance: int) -> None:
        self.node = node
        self.before = before
        self.depth: int = 0 if before is None else before.depth + 1
        self.lowest: int = distance if before is None else min(before.lowest, distance)

    def back(self) -> Iterator[str]:
        link: _PathNode | None = self
        while link is not None:
            yield link.node
            link = link.before

    def path(self) -> tuple[str, ...]:
        return tuple(self.back())[::-1]


class _PathSearch:
    """Best first: of all beginnings, go on with the one that can end soonest.

    How far each node is from the target is known beforehand, so that a beginning which leads
    nowhere is never taken up, except where its own nodes are in its way. The followers of a node
    are taken up one at a time: a hub costs no more than its followers that are wanted.
    """

    def __init__(self, graph: DependencyGraph, target: str, effort: int) -> None:
        self.effort = effort
        self._graph = graph
        self._target = target
        self._distances: Mapping[str, int] = graph.distances_to(target)
        self._followers: dict[str, list[str]] = {}
        self._heap: list[tuple[int, int, int, _PathNode | None, int, Sequence[str]]] = []
        self._tie = count()

    def run(self, sources: Sequence[str]) -> Iterator[_PathNode]:
        """The last links of the chains, the shortest chain first, as long as effort is left."""
        starts = [node for node in dict.fromkeys(sources) if node in self._distances]
        self._push(None, sorted(starts, key=self._distances.__getitem__), 0)
        while self._heap and self.effort > 0:
            self.effort -= 1
            *_, link, position, nodes = heapq.heappop(self._heap)
            self._push(link, nodes, position + 1)
            node = nodes[position]
            distance = self._distances[node]
            if link is not None and self._is_behind(link, node, distance):
                continue
            following = _PathNode(node, link, distance)
            if node == self._target:
                yield following
            else:
                self._push(following, self._followers_of(node), 0)

    def _push(self, link: _PathNode | None, nodes: Sequence[str], position: int) -> None:
        """Remember to go on from a link to one of its followers, and to those behind that."""
        if position < len(nodes):
            depth = 0 if link is None else link.depth + 1
            length = depth + self._distances[nodes[position]]
            heapq.heappush(self._heap, (length, -depth, next(self._tie), link, position, nodes))

    def _followers_of(self, node: str) -> Sequence[str]:
        """What a node depends on and the target can be reached from, the nearest first."""
        if node not in self._followers:
            depends = self._graph.depends
            self._followers[node] = sorted(
                (
                    following
                    for following in self._graph.successors(node)
                    if following in self._distances and depends(node, following)
                ),
                key=self._distances.__getitem__,
            )
        return self._followers[node]

    def _is_behind(self, link: _PathNode, node: str, distance: int) -> bool:
        """Whether a chain has a node already; one nearer to the target than all of it is new."""
        if distance < link.lowest:
            return False
        steps_back = next((n for n, known in enumerate(link.back()) if known == node), None)
        looks = link.depth if steps_back is None else steps_back
        self.effort -= looks // _LOOKS_PER_STEP
        return steps_back is not None


class CodeKind(str, Enum):
    """In which form a module's code exists."""

    SOURCE = "source"
    EXTENSION = "extension"
    BYTECODE = "bytecode"
    BUILTIN = "builtin"
    NAMESPACE = "namespace"
    """A folder without ``__init__`` (PEP 420): a package, but no code."""
    UNKNOWN = "unknown"
    """A finder knows it, but neither a file nor a source can be had."""


@dataclass(frozen=True)
class Location:
    """A module that was found, without importing it.

    Attributes:
        module: its path.
        kind: in which form its code exists.
        file: the file or record that holds it, for people.
        is_package: whether it can have submodules.
        search: the folders in which its submodules are looked for.
    """

    module: str
    kind: CodeKind
    file: str | None = None
    is_package: bool = False
    search: tuple[str, ...] = ()


class ModuleSource(Protocol):
    """A place that modules come from: this interpreter, or another package.

    Finding and reading never executes anything.
    """

    def locate(self, module: str) -> Location | None:
        """Find a module, or return None."""

    def read_source(self, location: Location) -> bytes:
        """The source of a module whose kind is SOURCE, as it is stored."""

    def live_attribute(self, module: str, name: str) -> str | None:
        """What a loaded module binds a name to.

        Returns:
            ``"submodule"``, ``"attribute"``, or None if the module is not loaded here or
            does not bind the name.
        """

    def live_home(self, module: str, name: str) -> str | None:
        """Where the class or function lives that a loaded module binds to a name.

        Returns:
            Its module path; None if the module is not loaded here, does not bind the name, or
            binds it to something that does not say where it is from.
        """
        return None

    def loaded(self) -> Collection[str]:
        """The modules that are known to be needed: those that are loaded, or all of a package."""
        return ()

    def lacks(self, module: str) -> bool:
        """Whether code from here cannot import a module, wherever it runs."""
        return False

    @property
    def is_package(self) -> bool:
        """Whether it is a package, which lacks what was left out when it was made."""
        return False
