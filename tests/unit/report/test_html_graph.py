"""The graph of the HTML report."""

from __future__ import annotations

from modpack.core.graph import DependencyGraph, Edge
from modpack.core.rules import Action, Owner
from modpack.core.scan import ImportKind
from modpack.report.audit_facts import AuditFacts
from modpack.report.facts import ModuleFacts
from modpack.report.html_document import drawn_graph, previous_on_chains
from modpack.report.package_info import NEEDED_BY_MOCKS
from tests.described_packages import package_of

SAVED = "<model/net.pkl>"
INPUTS = "<.data/modpack/self_test/0/inputs.pkl>"


def audit_of(*edges: tuple[str, str], roots: tuple[str, ...] = (INPUTS, SAVED)) -> AuditFacts:
    graph = DependencyGraph()
    for root in roots:
        graph.mark_root(root)
    for importer, imported in edges:
        graph.add_edge(Edge(importer, imported, ImportKind.REQUIRED))
    decided = dict.fromkeys(imported for _, imported in edges)
    modules = tuple(ModuleFacts(each, Action.INTERN) for each in decided)
    return AuditFacts(package_of(), modules, graph=graph)


def test_chains_from_self_test_inputs_come_last():
    graph = drawn_graph(
        audit_of((SAVED, "net"), ("net", "batch"), (INPUTS, "batch"), (INPUTS, "only"))
    )
    assert previous_on_chains(graph)["batch"] == "net"
    assert previous_on_chains(graph)["only"] == INPUTS


def test_graph_adds_imports_of_mocks():
    modules = (
        ModuleFacts("spy", Action.MOCK),
        ModuleFacts("_modpack_mock", Action.INTERN),
        ModuleFacts("types", Action.EXTERN, NEEDED_BY_MOCKS, provided_by=Owner.STDLIB),
        ModuleFacts("json", Action.EXTERN, "implicit", provided_by=Owner.STDLIB),
    )
    graph = drawn_graph(AuditFacts(package_of(), modules))
    assert graph.predecessors("_modpack_mock") == ("spy",)
    assert graph.successors("_modpack_mock") == ("types",)


def test_graph_without_mock_runtime_has_no_mock_imports():
    graph = drawn_graph(AuditFacts(package_of(), (ModuleFacts("spy", Action.MOCK),)))
    assert len(graph) == 0
