"""Why a module is there."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from modpack.core.graph import CodeKind, DependencyGraph, Edge, Location
from modpack.core.names import GlobGroup
from modpack.core.plan import Decision, Plan
from modpack.core.rules import Action, Rule
from modpack.core.scan import ImportKind
from modpack.diagnostics import Diagnostic
from modpack.report.json_output import document
from modpack.report.why import (
    MAX_COUNTED,
    MAX_NODES,
    ModuleStatus,
    all_chains,
    shortest_chains,
    why,
)
from modpack.report.why_text import why_report


def plan_of(*edges, roots=("<m/net.pkl>",), decided=None, notes=()):
    """A plan from edges as ``"importer imported kind line names"``; all modules are interned."""
    graph = DependencyGraph()
    for root in roots:
        graph.mark_root(root)
    for edge in edges:
        importer, imported, *rest = edge.split()
        kind, line, names = (*rest, *("required", "0", "")[len(rest) :])
        taken = tuple(filter(None, names.split(",")))
        graph.add_edge(Edge(importer, imported, ImportKind(kind), int(line) or None, taken))
    modules = [node for node in graph.nodes() if not node.startswith("<")]
    return Plan(
        {m: decision(m) for m in (modules if decided is None else decided)},
        notes=notes,
        graph=graph,
    )


def decision(module):
    location = Location(module, CodeKind.SOURCE, f"{module.replace('.', '/')}.py")
    return Decision(module, Action.INTERN, Rule(Action.INTERN, GlobGroup("**")), location)


def told(chains):
    return [" ".join([c.start, *(step.imported for step in c.steps)]) for c in chains.chains]


def test_each_saved_object_has_its_shortest_chain_the_shortest_first():
    plan = plan_of(
        "<m/net.pkl> a pickle",
        "a b",
        "b z",
        "<m/other.pkl> z pickle",
        "<m/third.pkl> c pickle",
        roots=("<m/net.pkl>", "<m/other.pkl>", "<m/third.pkl>"),
    )
    chains = shortest_chains(plan, "z")
    assert told(chains) == ["<m/other.pkl> z", "<m/net.pkl> a b z"]
    assert chains.more == 0


def test_a_step_tells_where_it_shows_and_what_it_takes():
    plan = plan_of("<m/net.pkl> shop.net pickle 0 Net,Head", "shop.net wandb function 12 log")
    (chain,) = shortest_chains(plan, "wandb").chains
    held, used = chain.steps
    assert (held.kind, held.names, held.place) == (ImportKind.PICKLE, ("Net", "Head"), None)
    assert (used.kind, used.names, used.place) == (ImportKind.FUNCTION, ("log",), "shop/net.py:12")


def test_the_strongest_evidence_is_told_and_the_rest_is_counted():
    plan = plan_of(
        "<m/net.pkl> a pickle",
        "a z guarded 3",
        "a z function 5",
        "a z required 9",
        "a z type-checking 1",
    )
    (chain,) = shortest_chains(plan, "z").chains
    assert (chain.steps[-1].line, chain.steps[-1].others) == (9, 2)


def test_of_chains_of_one_length_the_one_that_runs_at_once_comes_first():
    plan = plan_of("<m/net.pkl> a pickle", "a b function 1", "a c required 2", "b z", "c z")
    assert told(shortest_chains(plan, "z")) == ["<m/net.pkl> a c z", "<m/net.pkl> a b z"]


def test_chains_that_are_as_short_are_told_and_counted_without_following_each():
    layers = [f"{a}{n} {b}{n + 1}" for n in range(60) for a in "xy" for b in "xy"]
    plan = plan_of("<m/net.pkl> x0 pickle", *layers, "x60 z", "y60 z")
    chains = shortest_chains(plan, "z")
    assert len(chains.chains) == 3 and {len(c.steps) for c in chains.chains} == {62}
    assert chains.as_short == MAX_COUNTED
    assert "and at least 1,000,000 more that are as short" in printed(why(plan, "z"))


def diamonds(layers):
    """A plan in which 2 ** layers chains, all as short as can be, lead to z."""
    rows = [("a", "b")] * layers
    edges = [f"{x}{n} {y}{n + 1}" for n, row in enumerate(rows) for x in row for y in row]
    ends = [f"<m/net.pkl> {x}0 pickle" for x in "ab"] + [f"{x}{layers} z" for x in "ab"]
    return plan_of(*ends, *edges)


@pytest.mark.parametrize("every_chain", [False, True])
def test_chains_of_a_deep_graph_are_told_as_long_as_they_are_not_too_long(every_chain):
    found = why(diamonds(300), "z", every_chain=every_chain)
    nodes = sum(len(chain.steps) + 1 for chain in found.chains.chains)
    assert 0 < nodes <= MAX_NODES
    assert "too long" not in printed(found, every_chain)


@pytest.mark.parametrize("every_chain", [False, True])
def test_of_a_graph_of_any_depth_nothing_is_told_that_nobody_could_read(every_chain):
    found = why(diamonds(12_000), "z", every_chain=every_chain)
    assert found.chains.chains == ()
    assert found.chains.more > 0
    assert found.chains.as_short == 0
    assert "in chains that are too long to show" in printed(found, every_chain)
    assert len(json.dumps(document(found, file="x", every_chain=every_chain))) < 10_000


def test_things_whose_chains_find_no_room_are_counted():
    near, far = "<m/near.pkl>", "<m/far.pkl>"
    edges = [f"m{n} m{n + 1}" for n in range(MAX_NODES - 10)]
    plan = plan_of(*edges, f"{near} m0 pickle", f"{far} x pickle", "x m0", roots=(far, near))
    chains = shortest_chains(plan, f"m{MAX_NODES - 10}")
    assert [chain.start for chain in chains.chains] == [near]
    assert chains.more == 1


def test_more_saved_objects_than_anybody_reads_are_counted():
    roots = tuple(f"<m/{n}.pkl>" for n in range(14))
    plan = plan_of(*(f"{root} z pickle" for root in roots), roots=roots)
    chains = shortest_chains(plan, "z")
    assert (len(chains.chains), chains.more) == (10, 4)


def test_what_was_saved_by_name_needs_no_steps():
    plan = plan_of("a b", roots=("a",))
    (chain,) = shortest_chains(plan, "a").chains
    assert (chain.start, chain.steps) == ("a", ())


def test_all_chains_are_told_cycles_included():
    plan = plan_of("<m/net.pkl> a pickle", "a b", "b a", "b z", "a z", "z a")
    assert told(all_chains(plan, "z")) == ["<m/net.pkl> a z", "<m/net.pkl> a b z"]
    chains = all_chains(plan, "z", most=1)
    assert (len(chains.chains), chains.more, chains.is_complete) == (1, 1, True)


def test_a_module_is_decided_left_out_never_run_or_undecided():
    plan = plan_of(
        "<m/net.pkl> a pickle",
        "a typed type-checking 2",
        "a absent guarded 3",
        "a lost required 4",
        decided=["a"],
        notes=(Diagnostic.from_code("optional-import-missing", "absent", "it is not installed"),),
    )
    standings = {m: why(plan, m).standing for m in ("a", "typed", "absent", "lost")}
    assert standings == {
        "a": ModuleStatus.DECIDED,
        "typed": ModuleStatus.NEVER_RUN,
        "absent": ModuleStatus.LEFT_OUT,
        "lost": ModuleStatus.UNDECIDED,
    }
    assert why(plan, "typed").chains.chains == ()
    assert [step.place for step in why(plan, "typed").importers] == ["a.py:2"]
    assert [str(note) for note in why(plan, "absent").notes] == ["it is not installed"]


def test_everybody_who_imports_it_is_told_the_strongest_first():
    plan = plan_of("a z guarded 3", "b z function 2", "c z required 1", roots=("a", "b", "c"))
    assert [step.importer for step in why(plan, "z").importers] == ["c", "b", "a"]


def test_what_nothing_mentions_is_a_key_error():
    with pytest.raises(KeyError):
        why(plan_of("a b"), "nowhere")


def printed(found, every_chain=False):
    stream = io.StringIO()
    Console(file=stream, width=120, color_system=None).print(why_report(found, every_chain))
    return stream.getvalue()


def test_names_cannot_steer_the_terminal():
    evil = "evil\x1b[2J"
    plan = plan_of(
        f"<m/{evil}> {evil} pickle 0 {evil}",
        f"{evil} z required 3 {evil}",
        f"a{evil} z type-checking 3",
        roots=(f"<m/{evil}>",),
        notes=(Diagnostic.from_code("optional-import-missing", "z", evil),),
    )
    for module in ("z", evil):
        for every_chain in (False, True):
            text = printed(why(plan, module, every_chain=every_chain, provider=evil), every_chain)
            assert "\x1b" not in text and "evil\\x1b[2J" in text


def test_a_report_says_how_many_chains_are_not_shown():
    roots = tuple(f"<m/{n}.pkl>" for n in range(14))
    plan = plan_of(*(f"{root} z pickle" for root in roots), roots=roots)
    assert "and from 4 more" in printed(why(plan, "z"))
    assert "and 4 more" not in printed(why(plan, "z", every_chain=True), True)


def test_a_module_that_nothing_leads_to_says_so():
    assert "no import in the package leads to it" in printed(why(plan_of("a b", roots=()), "b"))
