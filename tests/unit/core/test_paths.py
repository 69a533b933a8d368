from __future__ import annotations

import random

import pytest

from modpack.core.graph import DependencyGraph, Edge, simple_paths
from modpack.core.scan import ImportKind


def graph_of(pairs, kind=ImportKind.REQUIRED):
    graph = DependencyGraph()
    for importer, imported in pairs:
        graph.add_edge(Edge(importer, imported, kind))
    return graph


def every_simple_path(pairs, start, target):
    """Return all simple paths by exhaustive search."""
    found, todo = [], [(start,)]
    while todo:
        path = todo.pop()
        if path[-1] == target:
            found.append(path)
        else:
            todo += [(*path, b) for a, b in pairs if a == path[-1] and b not in path]
    return found


def test_simple_paths_are_shortest_first():
    graph = graph_of([("a", "b"), ("b", "z"), ("a", "z"), ("b", "c"), ("c", "z")])
    found = simple_paths(graph, "z", ["a"])
    assert found.paths == (("a", "z"), ("a", "b", "z"), ("a", "b", "c", "z"))
    assert (found.more, found.is_complete) == (0, True)


@pytest.mark.parametrize("seed", range(20))
def test_simple_paths_match_exhaustive_search(seed):
    random.seed(seed)
    names = "abcdefg"
    pairs = {(random.choice(names), random.choice(names)) for _ in range(16)}
    pairs = sorted((a, b) for a, b in pairs if a != b)
    found = simple_paths(graph_of(pairs), "g", ["a"])
    expected = every_simple_path(pairs, "a", "g")
    assert sorted(found.paths) == sorted(expected)
    assert [len(path) for path in found.paths] == sorted(len(path) for path in expected)
    assert found.is_complete


def test_simple_paths_include_source_as_target():
    graph = graph_of([("a", "b"), ("b", "a")])
    assert simple_paths(graph, "a", ["a", "b"]).paths == (("a",), ("b", "a"))


def test_paths_beyond_max_nodes_are_counted():
    graph = graph_of([("a", "b"), ("b", "z"), ("a", "z"), ("b", "c"), ("c", "z")])
    found = simple_paths(graph, "z", ["a"], max_nodes=6)
    assert found.paths == (("a", "z"), ("a", "b", "z"))
    assert (found.more, found.is_complete) == (1, True)


def test_simple_paths_ignore_imports_that_never_run():
    graph = graph_of([("a", "b")], ImportKind.TYPE_CHECKING)
    assert simple_paths(graph, "b", ["a"]).paths == ()
    assert simple_paths(graph, "unknown", ["a"]).paths == ()


def test_paths_beyond_max_paths_are_counted():
    pairs = [("a", f"m{n}") for n in range(30)] + [(f"m{n}", "z") for n in range(30)]
    found = simple_paths(graph_of(pairs), "z", ["a"], max_paths=10)
    assert (len(found.paths), found.more, found.is_complete) == (10, 20, True)


@pytest.mark.parametrize(
    "pairs, target",
    [
        pytest.param(
            [(f"m{a}", f"m{b}") for a in range(120) for b in range(120) if a != b],
            "m7",
            id="everything imports everything",
        ),
        pytest.param(
            [("m0", f"x{n}") for n in range(5000)]
            + [(f"x{n}", "hub") for n in range(5000)]
            + [("hub", f"x{n}") for n in range(5000)]
            + [("hub", "t")],
            "t",
            id="a hub of thousands",
        ),
        pytest.param(
            [
                pair
                for n in range(3000)
                for side in "ab"
                for pair in ((f"m{n}", f"{side}{n}"), (f"{side}{n}", f"m{n + 1}"))
            ],
            "m3000",
            id="two ways, three thousand times over",
        ),
        pytest.param(
            [("m0", "x"), ("x", "t")]
            + [(f"c{a}", f"c{b}") for a in range(100) for b in range(100) if a != b]
            + [pair for n in range(100) for pair in (("x", f"c{n}"), (f"c{n}", "x"))],
            "t",
            id="a thicket that leads back",
        ),
    ],
)
def test_unfinished_search_is_incomplete(pairs, target):
    found = simple_paths(graph_of(pairs), target, ["m0"], max_paths=5)
    assert found.paths
    assert not found.is_complete or found.more
    assert all(len(set(path)) == len(path) for path in found.paths)
    assert all(path[0] == "m0" and path[-1] == target for path in found.paths)


def test_simple_paths_handle_long_chain():
    pairs = [(f"m{n}", f"m{n + 1}") for n in range(10_000)]
    pairs += [(b, a) for a, b in pairs]
    found = simple_paths(graph_of(pairs), "m10000", ["m0"])
    assert [len(path) for path in found.paths] == [10_001]
    assert found.is_complete
