from __future__ import annotations

import pytest

from modpack.core.graph import DependencyGraph, Edge
from modpack.core.scan import ImportKind


def graph_of(*edges: str, roots: tuple[str, ...] = ("a",)) -> DependencyGraph:
    """Return a graph of edges such as ``"a b"`` or ``"a b type-checking"``."""
    graph = DependencyGraph()
    for root in roots:
        graph.mark_root(root)
    for edge in edges:
        importer, imported, *kind = edge.split()
        graph.add_edge(Edge(importer, imported, ImportKind(kind[0] if kind else "required")))
    return graph


def test_add_edge_returns_whether_new():
    graph = DependencyGraph()
    edge = Edge("a", "b", ImportKind.REQUIRED, 1)
    assert graph.add_edge(edge) and not graph.add_edge(edge)
    assert graph.add_edge(Edge("a", "b", ImportKind.GUARDED, 2))
    assert len(graph.edges_between("a", "b")) == 2 == len(graph.edges_to("b"))
    assert len(list(graph.edges())) == 2 and len(graph) == 2


def test_many_parallel_edges_keep_order():
    graph = DependencyGraph()
    for line in range(100_000, 0, -1):  # comparing each with all previous ones would take hours
        graph.add_edge(Edge("a", "b", ImportKind.REQUIRED, line))
    found = graph.edges_between("a", "b")
    assert len(found) == 100_000 and found[0].line == 100_000


def test_neighbors_are_in_insertion_order():
    graph = graph_of("a c", "a b", "d c")
    assert graph.successors("a") == ("c", "b")
    assert graph.predecessors("c") == ("a", "d")
    assert graph.predecessors("unknown") == () == graph.successors("unknown")
    assert list(graph.nodes()) == ["a", "c", "b", "d"]
    assert "a" in graph and "unknown" not in graph


def test_shortest_path_leads_from_root_to_target():
    graph = graph_of("a b", "b c", "c d", "a x", "x d", roots=("a",))
    assert graph.shortest_path("d") == ("a", "x", "d")
    assert graph.shortest_path("a") == ("a",)
    assert graph.shortest_path("d", ["c"]) == ("c", "d")
    assert graph.shortest_path("unknown") == ()
    assert graph.shortest_path("a", ["d"]) == ()


def test_shortest_path_ignores_code_that_never_runs():
    graph = graph_of("a c type-checking", "a b", "b c")
    assert graph.shortest_path("c") == ("a", "b", "c")
    assert graph.reachable_nodes() == {"a", "b", "c"}
    assert graph_of("a c type-checking").reachable_nodes() == {"a"}


def test_between_contains_edges_on_paths_only():
    graph = graph_of("a b", "b c", "b side", "other c", "a c", "c a")
    part = graph.between("a", "c")
    assert {(edge.importer, edge.imported) for edge in part.edges()} == {
        ("a", "b"),
        ("b", "c"),
        ("a", "c"),
        ("c", "a"),
    }
    assert list(graph.between("a", "unknown").edges()) == []


def test_drop_edges_from_removes_both_directions():
    graph = graph_of("a b", "a c", "b c")
    graph.drop_edges_from("a")
    graph.drop_edges_from("unknown")
    assert graph.successors("a") == () and graph.predecessors("b") == ()
    assert graph.predecessors("c") == ("b",)
    assert graph.reachable_nodes() == {"a"}
    assert graph.add_edge(Edge("a", "b", ImportKind.REQUIRED))


def test_to_dot_quotes_names():
    graph = DependencyGraph()
    graph.add_edge(Edge('<m/o "x".pkl>', "a\\b", ImportKind.PICKLE))
    assert graph.to_dot().splitlines()[-2] == '"<m/o \\"x\\".pkl>" -> "a\\\\b";'
    assert DependencyGraph().to_dot().startswith("digraph G {")


@pytest.mark.parametrize("size", [10_000])
def test_searches_handle_long_cycles(size):
    graph = graph_of(*(f"n{i} n{(i + 1) % size}" for i in range(size)), roots=("n0",))
    assert len(graph.shortest_path(f"n{size - 1}")) == size
    assert len(graph.between("n5", "n4")) == size
    assert len(graph.reachable_nodes()) == size


def test_distances_to_counts_steps_that_can_run():
    graph = graph_of("a b", "b c", "a x type-checking", "x c", "c a")
    assert graph.distances_to("c") == {"c": 0, "b": 1, "x": 1, "a": 2}
    assert graph.distances_to("unknown") == {}


def test_depends_ignores_code_that_never_runs():
    graph = graph_of("a b", "a c type-checking")
    assert graph.depends("a", "b")
    assert not graph.depends("a", "c") and not graph.depends("b", "a")
    assert not graph.depends("a", "unknown") and not graph.depends("unknown", "a")
