"""All chains of dependencies that lead to a node, the shortest first, one after the other."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from modpack.core.graph import DependencyGraph

__all__ = ["FoundPaths", "simple_paths"]

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
    >>> from modpack.core.imports import ImportKind
    >>> graph = DependencyGraph()
    >>> for edge in ("ab", "bc", "ca", "ac"):
    ...     _ = graph.add_edge(Edge(*edge, ImportKind.REQUIRED))
    >>> simple_paths(graph, "c", ["a"]).paths
    (('a', 'c'), ('a', 'b', 'c'))
    """
    search = _Search(graph, target, effort)
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


class _Link:
    """The last node of the beginning of a chain."""

    __slots__ = ("before", "depth", "lowest", "node")

    def __init__(self, node: str, before: _Link | None, distance: int) -> None:
        self.node = node
        self.before = before
        self.depth: int = 0 if before is None else before.depth + 1
        self.lowest: int = distance if before is None else min(before.lowest, distance)

    def back(self) -> Iterator[str]:
        link: _Link | None = self
        while link is not None:
            yield link.node
            link = link.before

    def path(self) -> tuple[str, ...]:
        return tuple(self.back())[::-1]


class _Search:
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
        self._heap: list[tuple[int, int, int, _Link | None, int, Sequence[str]]] = []
        self._tie = count()

    def run(self, sources: Sequence[str]) -> Iterator[_Link]:
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
            following = _Link(node, link, distance)
            if node == self._target:
                yield following
            else:
                self._push(following, self._followers_of(node), 0)

    def _push(self, link: _Link | None, nodes: Sequence[str], position: int) -> None:
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

    def _is_behind(self, link: _Link, node: str, distance: int) -> bool:
        """Whether a chain has a node already; one nearer to the target than all of it is new."""
        if distance < link.lowest:
            return False
        steps_back = next((n for n, known in enumerate(link.back()) if known == node), None)
        looks = link.depth if steps_back is None else steps_back
        self.effort -= looks // _LOOKS_PER_STEP
        return steps_back is not None
