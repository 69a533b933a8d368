"""The graph as the page draws it: that of the audit, less its own bookkeeping.

The inputs of a trial run are saved with the package, but nobody loads them with the model: a chain
of imports begins at them only where the model's own chains do not lead. The module that stand-ins
import is in no plan, and gets the imports that their sources have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from modpack.archive import layout
from modpack.core.actions import Action
from modpack.core.graph import DependencyGraph, Edge
from modpack.core.imports import ImportKind
from modpack.archive.layout import RUNTIME_MODULE
from modpack.report.archived import STAND_INS_NEED
from modpack.report.auditing.facts import AuditFacts

__all__ = ["depths_on_chains", "drawn_graph", "is_trial_input", "previous_on_chains"]

_TRIALS: Final = f"<{layout.MODPACK_PREFIX}trial/"


def is_trial_input(node: str) -> bool:
    """Return whether a node stands for the inputs of a trial run."""
    return node.startswith(_TRIALS)


def drawn_graph(audit: AuditFacts) -> DependencyGraph:
    """Return the graph of an audit with the imports of stand-ins, without needless trial inputs.

    Args:
        audit: the audit.
    """
    left_out = _needless_inputs(audit)
    of_stand_ins = list(_imports_of_stand_ins(audit))
    if not (left_out or of_stand_ins):
        return audit.graph
    graph = DependencyGraph()
    for node in audit.graph.nodes():
        if node not in left_out:
            graph.add_node(node)
    for edge in audit.graph.edges():
        if edge.importer not in left_out:
            graph.add_edge(edge)
    for root in audit.graph.roots():
        if root not in left_out:
            graph.mark_root(root)
    for edge in of_stand_ins:
        graph.add_edge(edge)
    return graph


def previous_on_chains(graph: DependencyGraph) -> Mapping[str, str | None]:
    """For every node that dependencies lead to: the node before it on a shortest chain.

    One search for all of them: breadth-first from the roots, which have None. Chains from the
    inputs of a trial run come last, for what no other chain leads to.
    """
    previous: dict[str, str | None] = {}
    for trial in (False, True):
        roots = [root for root in graph.roots() if is_trial_input(root) is trial]
        previous.update(dict.fromkeys(roots))
        _search(graph, roots, previous)
    return previous


def depths_on_chains(previous: Mapping[str, str | None]) -> dict[str, int]:
    """Return how many steps each node is away from where its chain begins.

    Args:
        previous: what :func:`previous_on_chains` returned.
    """
    depths: dict[str, int] = {}
    for name, before in previous.items():
        depths[name] = 0 if before is None else depths[before] + 1
    return depths


def _search(graph: DependencyGraph, starts: list[str], previous: dict[str, str | None]) -> None:
    queue = deque(starts)
    while queue:
        importer = queue.popleft()
        for imported in graph.successors(importer):
            if imported not in previous and graph.depends(importer, imported):
                previous[imported] = importer
                queue.append(imported)


def _needless_inputs(audit: AuditFacts) -> frozenset[str]:
    """The trial inputs from which no chain begins that the package needs."""
    inputs = frozenset(filter(is_trial_input, audit.graph.nodes()))
    if not inputs:
        return inputs
    decided = {facts.module for facts in audit.modules}
    previous = previous_on_chains(audit.graph)
    needed = {_start(module, previous) for module in decided if module in previous}
    return inputs - needed


def _start(node: str, previous: Mapping[str, str | None]) -> str:
    while (before := previous[node]) is not None:
        node = before
    return node


def _imports_of_stand_ins(audit: AuditFacts) -> Iterable[Edge]:
    if all(facts.module != RUNTIME_MODULE for facts in audit.modules):
        return
    for facts in audit.modules:
        if facts.action is Action.MOCK:
            yield Edge(facts.module, RUNTIME_MODULE, ImportKind.REQUIRED)
        elif facts.rule == STAND_INS_NEED:
            yield Edge(RUNTIME_MODULE, facts.module, ImportKind.REQUIRED)
