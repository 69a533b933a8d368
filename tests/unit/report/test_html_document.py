"""The data for the scripts of the HTML report."""

from __future__ import annotations

import json

from modpack.core.graph import DependencyGraph, Edge
from modpack.core.observations import MockRisk
from modpack.core.plan import UseKind
from modpack.core.rules import Action, Owner
from modpack.core.scan import ImportKind
from modpack.diagnostics import Diagnostic
from modpack.report.audit_facts import AuditFacts, MockFacts
from modpack.report.facts import ModuleFacts, UseFacts
from modpack.report.html_document import (
    PackagedSources,
    packed,
    page_document,
    previous_on_chains,
    sources_document,
)
from modpack.report.module_groups import GroupKind, group_of, grouped, groups_of
from tests.described_packages import package_of

SAVED = "<model/net.pkl>"


def graph_of(*edges: tuple[str, str, ImportKind]) -> DependencyGraph:
    graph = DependencyGraph()
    graph.mark_root(SAVED)
    for line, (importer, imported, kind) in enumerate(edges, start=1):
        graph.add_edge(Edge(importer, imported, kind, line))
    return graph


def test_previous_nodes_form_shortest_chains():
    graph = graph_of(
        (SAVED, "net", ImportKind.PICKLE),
        ("net", "long", ImportKind.REQUIRED),
        ("long", "target", ImportKind.REQUIRED),
        ("net", "target", ImportKind.FUNCTION),
        ("target", "net", ImportKind.REQUIRED),
    )
    previous = previous_on_chains(graph)
    assert previous == {SAVED: None, "net": SAVED, "long": "net", "target": "net"}


def test_chains_skip_type_checking_imports():
    graph = graph_of((SAVED, "net", ImportKind.PICKLE), ("net", "typed", ImportKind.TYPE_CHECKING))
    assert "typed" not in previous_on_chains(graph)


def test_node_has_decision_chain_and_depth():
    graph = graph_of((SAVED, "net", ImportKind.PICKLE), ("net", "spy", ImportKind.REQUIRED))
    modules = (
        ModuleFacts("net", Action.INTERN, "intern('net')", record="net.py", size_bytes=3),
        ModuleFacts("spy", Action.MOCK, "mock('spy')", overridden_by="shop.hook"),
    )
    saved, net, spy = page_document(AuditFacts(package_of(), modules, graph=graph))["nodes"]
    assert (saved["previous"], saved["depth"], "action" in saved) == (None, 0, False)
    assert (net["previous"], net["depth"], net["record"], net["size"]) == (0, 1, "net.py", 3)
    assert (spy["previous"], spy["depth"], spy["action"]) == (1, 2, "mock")
    assert (spy["rule"], spy["overridden"]) == ("mock('spy')", "shop.hook")


def test_roots_are_computed_once(monkeypatch):
    asked = []
    monkeypatch.setattr(
        DependencyGraph, "roots", lambda graph: asked.append(graph) or tuple(graph._roots)
    )

    def times_asked(nodes):
        graph = graph_of(*((SAVED, f"m{n}", ImportKind.PICKLE) for n in range(nodes)))
        asked.clear()
        page_document(AuditFacts(package_of(), (), graph=graph))
        return len(asked)

    assert times_asked(nodes=2) == times_asked(nodes=200)


def test_edge_has_ends_kind_line_and_names():
    graph = graph_of()
    names = tuple(f"name{number}" for number in range(20))
    graph.add_edge(Edge("a", "b", ImportKind.GUARDED, 7, names))
    document = page_document(AuditFacts(package_of(), (), graph=graph))
    ((importer, imported, kind, line, told),) = document["edges"]
    assert document["nodes"][importer]["name"] == "a"
    assert document["nodes"][imported]["name"] == "b"
    assert document["kinds"][kind] == "guarded"
    assert line == 7
    assert told == [*names[:12], "..."]


def test_undecided_node_has_no_group():
    graph = graph_of((SAVED, "absent", ImportKind.GUARDED))
    saved, absent = page_document(AuditFacts(package_of(), (), graph=graph))["nodes"]
    assert saved["group"] == 0
    assert absent["group"] is None


def test_page_document_has_mocks_and_findings():
    use = UseFacts(
        "spy", "log", "net", "net.py", 4, UseKind.FUNCTION_BODY, "Net.forward", ("tools",)
    )
    audit = AuditFacts(
        package_of(),
        (ModuleFacts("spy", Action.MOCK),),
        mocks=(MockFacts("spy", None, uses=(use,), risk=MockRisk.CALLED),),
        findings=(Diagnostic.from_code("mock-called", "spy", "used", "net.py:4", hint="Do."),),
    )
    document = page_document(audit)
    mock = document["mocks"]["0"]
    assert (mock["risk"], mock["observed"]) == ("called", "called")
    assert mock["uses"][0]["name"] == "spy.log"
    assert mock["uses"][0]["via"] == ["tools"]
    assert document["findings"][0]["code"] == "mock-called"


def test_page_document_texts_are_safe():
    odd = "a\ud800\u202e\x00"
    graph = graph_of((odd, odd, ImportKind.REQUIRED))
    audit = AuditFacts(package_of(odd), (ModuleFacts(odd, Action.INTERN, odd),), graph=graph)
    for document in (
        page_document(audit),
        sources_document(audit, PackagedSources({odd: packed("x")})),
    ):
        text = json.dumps(document, ensure_ascii=False)
        assert text.encode()
        assert text.isprintable()


# -- groups ----------------------------------------------------------------------------------


def test_modules_of_distribution_form_a_group():
    group = group_of(
        ModuleFacts("yaml.nodes", Action.INTERN, distribution="PyYAML", version="6", license="MIT")
    )
    assert (group.kind, group.name, group.version) == (GroupKind.DISTRIBUTION, "PyYAML", "6")
    assert group.license == "MIT"


def test_local_code_is_grouped_by_top_level_package():
    assert group_of(ModuleFacts("shop.tills.left", Action.INTERN)).name == "shop"


def test_python_and_torch_have_own_groups():
    json_module = ModuleFacts("json", Action.EXTERN, provided_by=Owner.STDLIB)
    torch_module = ModuleFacts("torch.nn", Action.EXTERN, provided_by=Owner.RUNTIME)
    assert group_of(json_module).kind is GroupKind.PYTHON
    assert group_of(torch_module).kind is GroupKind.RUNTIME
    assert group_of(torch_module).name == "torch"


def test_local_code_is_listed_first():
    modules = (
        ModuleFacts("json", Action.EXTERN, provided_by=Owner.STDLIB),
        ModuleFacts("numpy", Action.EXTERN, distribution="numpy", version="2"),
        ModuleFacts("shop", Action.EXTERN),
        ModuleFacts("other", Action.INTERN),
    )
    listed = [group.name for group, _ in grouped(modules, Action.EXTERN)]
    assert listed == ["shop", "numpy", "Python's standard library"]


def test_distribution_is_one_group():
    six = ModuleFacts("six", Action.EXTERN, distribution="six", version="1.17", license="MIT")
    modules = (
        ModuleFacts("six.moves", Action.INTERN),
        ModuleFacts("six.moves.urllib", Action.MOCK),
        six,
        ModuleFacts("six.old", Action.INTERN, distribution="six", version="1.17"),
    )
    assert set(groups_of(modules).values()) == {group_of(six)}


def test_mocked_root_belongs_to_its_distribution():
    modules = (
        ModuleFacts("spy", Action.MOCK),
        ModuleFacts("spy.errors", Action.INTERN, distribution="Spy", version="2"),
    )
    assert {group.name for group in groups_of(modules).values()} == {"Spy"}


def test_local_code_in_shared_namespace_stays_local():
    own = ModuleFacts("shared.mine", Action.INTERN)
    other = ModuleFacts("shared.theirs", Action.EXTERN, distribution="theirs", version="2")
    groups = groups_of((own, other))
    assert groups[own.module].kind is GroupKind.CODE
    assert groups[other.module].name == "theirs"


def test_mock_runtime_is_not_local_code():
    assert group_of(ModuleFacts("_modpack_mock", Action.INTERN)).kind is GroupKind.RUNTIME
