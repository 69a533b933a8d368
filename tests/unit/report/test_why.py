"""``modpack why``: import chains, the status of a module, and the report."""

from __future__ import annotations

import io

from rich.console import Console

from modpack.core.graph import CodeKind, DependencyGraph, Edge, Location
from modpack.core.names import GlobGroup
from modpack.core.plan import Decision, Plan
from modpack.core.rules import Action, Owner, Rule
from modpack.core.scan import ImportKind
from modpack.diagnostics import Diagnostic
from modpack.report.facts import ModuleFacts
from modpack.report.json_output import dumps
from modpack.report.why import (
    MAX_NODES,
    ModuleStatus,
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


def explained(plan, module, **facts):
    """Why a module is in a package with a plan."""
    found = plan.decisions.get(module)
    known = None if found is None else ModuleFacts(module, found.action, str(found.rule), **facts)
    return why(plan, module, known)


def paths(found):
    return [" ".join([c.start, *(link.imported for link in c.links)]) for c in found.chains]


def test_shortest_chains_are_sorted_by_length():
    plan = plan_of(
        "<m/net.pkl> a pickle",
        "a b",
        "b z",
        "<m/other.pkl> z pickle",
        "<m/third.pkl> c pickle",
        roots=("<m/net.pkl>", "<m/other.pkl>", "<m/third.pkl>"),
    )
    found = explained(plan, "z")
    assert paths(found) == ["<m/other.pkl> z", "<m/net.pkl> a b z"]
    assert found.omitted == 0


def test_link_has_location_and_names():
    plan = plan_of("<m/net.pkl> shop.net pickle 0 Net,Head", "shop.net wandb function 12 log")
    (chain,) = explained(plan, "wandb").chains
    held, used = chain.links
    assert (held.kind, held.names, held.line) == (ImportKind.PICKLE, ("Net", "Head"), None)
    assert (used.kind, used.names, used.location) == (
        ImportKind.FUNCTION,
        ("log",),
        "shop/net.py:12",
    )


def test_link_has_strongest_evidence_and_counts_the_rest():
    plan = plan_of(
        "<m/net.pkl> a pickle",
        "a z guarded 3",
        "a z function 5",
        "a z required 9",
        "a z type-checking 1",
    )
    (chain,) = explained(plan, "z").chains
    assert (chain.links[-1].line, chain.links[-1].others) == (9, 2)


def test_one_chain_of_several_equally_short_ones_has_the_strongest_evidence():
    plan = plan_of("<m/net.pkl> a pickle", "a b function 1", "a c required 2", "b z", "c z")
    assert paths(explained(plan, "z")) == ["<m/net.pkl> a c z"]


def test_chain_of_deep_graph_is_found_without_following_each():
    rows = [(f"{a}{n}", f"{b}{n + 1}") for n in range(3000) for a in "xy" for b in "xy"]
    edges = [" ".join(row) for row in rows]
    plan = plan_of("<m/net.pkl> x0 pickle", *edges, "x3000 z", "y3000 z")
    (chain,) = explained(plan, "z").chains
    assert len(chain.links) == 3002


def test_chains_beyond_the_limit_are_counted_only():
    edges = [f"m{n} m{n + 1}" for n in range(MAX_NODES)]
    found = explained(plan_of("<m/net.pkl> m0 pickle", *edges), f"m{MAX_NODES}")
    assert (found.chains, found.omitted) == ((), 1)
    assert "too long to show" in printed(found)
    assert len(dumps(found)) < 10_000


def test_starts_beyond_the_limit_are_counted():
    near, far = "<m/near.pkl>", "<m/far.pkl>"
    edges = [f"m{n} m{n + 1}" for n in range(MAX_NODES - 10)]
    plan = plan_of(*edges, f"{near} m0 pickle", f"{far} x pickle", "x m0", roots=(far, near))
    found = explained(plan, f"m{MAX_NODES - 10}")
    assert [chain.start for chain in found.chains] == [near]
    assert found.omitted == 1


def test_shortest_chains_limits_the_number_of_starts():
    roots = tuple(f"<m/{n}.pkl>" for n in range(14))
    plan = plan_of(*(f"{root} z pickle" for root in roots), roots=roots)
    found = explained(plan, "z")
    assert (len(found.chains), found.omitted) == (10, 4)


def test_chain_of_module_saved_by_name_has_no_links():
    plan = plan_of("a b", roots=("a",))
    (chain,) = explained(plan, "a").chains
    assert (chain.start, chain.links) == ("a", ())


def test_chains_in_cycles_end_at_the_module():
    plan = plan_of("<m/net.pkl> a pickle", "a b", "b a", "b z", "z a")
    assert paths(explained(plan, "z")) == ["<m/net.pkl> a b z"]


def test_status_is_one_of_four():
    plan = plan_of(
        "<m/net.pkl> a pickle",
        "a typed type-checking 2",
        "a absent guarded 3",
        "a lost required 4",
        decided=["a"],
        notes=(Diagnostic.from_code("optional-import-missing", "absent", "it is not installed"),),
    )
    statuses = {m: explained(plan, m).status for m in ("a", "typed", "absent", "lost")}
    assert statuses == {
        "a": ModuleStatus.DECIDED,
        "typed": ModuleStatus.TYPE_CHECKING_ONLY,
        "absent": ModuleStatus.EXCLUDED,
        "lost": ModuleStatus.UNDECIDED,
    }
    assert explained(plan, "typed").chains == ()
    assert [link.location for link in explained(plan, "typed").importers] == ["a.py:2"]
    assert [note.message for note in explained(plan, "absent").notes] == ["it is not installed"]


def test_importers_start_with_the_strongest_evidence():
    plan = plan_of("a z guarded 3", "b z function 2", "c z required 1", roots=("a", "b", "c"))
    assert [link.importer for link in explained(plan, "z").importers] == ["c", "b", "a"]


def printed(found):
    stream = io.StringIO()
    Console(file=stream, width=120, color_system=None).print(why_report(found))
    return stream.getvalue()


def test_report_escapes_names():
    evil = "evil\x1b[2J"
    plan = plan_of(
        f"<m/{evil}> {evil} pickle 0 {evil}",
        f"{evil} z required 3 {evil}",
        f"a{evil} z type-checking 3",
        roots=(f"<m/{evil}>",),
        notes=(Diagnostic.from_code("optional-import-missing", "z", evil),),
    )
    for module in ("z", evil):
        found = explained(
            plan, module, provided_by=Owner.INSTALLED, distribution=evil, version=evil
        )
        text = printed(found)
        assert "\x1b" not in text and "evil\\x1b[2J" in text


def test_report_counts_omitted_chains():
    roots = tuple(f"<m/{n}.pkl>" for n in range(14))
    plan = plan_of(*(f"{root} z pickle" for root in roots), roots=roots)
    assert "and chains from 4 more saved objects" in printed(explained(plan, "z"))


def test_report_of_module_without_chain():
    assert "No import in the package leads to it" in printed(
        explained(plan_of("a b", roots=()), "b")
    )
