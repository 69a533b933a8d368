"""The graph of the HTML report."""

from __future__ import annotations

from modpack.core.graph import DependencyGraph, Edge
from modpack.core.scan import ImportKind
from modpack.report.html_document import previous_on_chains

SAVED = "<model/net.pkl>"
INPUTS = "<.data/modpack/self_test/0/inputs.pkl>"


def graph_of(*edges: tuple[str, str]) -> DependencyGraph:
    graph = DependencyGraph()
    for root in (INPUTS, SAVED):
        graph.mark_root(root)
    for importer, imported in edges:
        graph.add_edge(Edge(importer, imported, ImportKind.REQUIRED))
    return graph


def test_chains_from_self_test_inputs_come_last():
    graph = graph_of((SAVED, "net"), ("net", "batch"), (INPUTS, "batch"), (INPUTS, "only"))
    assert previous_on_chains(graph)["batch"] == "net"
    assert previous_on_chains(graph)["only"] == INPUTS
