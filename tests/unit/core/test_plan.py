from __future__ import annotations

import textwrap

import pytest

from modpack.core.graph import CodeKind, DependencyGraph, Edge, Location
from modpack.core.names import GlobGroup
from modpack.core.plan import (
    Decision,
    Note,
    NoteKind,
    PackagingError,
    PackagingErrorReason,
    Plan,
    Problem,
)
from modpack.core.plan_json import plan_from_json, plan_to_json
from modpack.core.rules import Action, Rule
from modpack.core.scan import ImportKind

DENIED, ABSENT = PackagingErrorReason.DENIED, PackagingErrorReason.SOURCE_FILE_NOT_FOUND


def test_the_error_groups_by_reason_in_a_fixed_order():
    problems = (
        Problem("b", DENIED, "by deny('b')"),
        Problem("a", ABSENT, "imported by x", "x.py:3", ("x", "a")),
        Problem("c", DENIED),
    )
    assert str(PackagingError(problems)) == textwrap.dedent(
        """
        * It was not found where it is exported. Install it, or mock it.
            a
              Context: x.py:3: imported by x
        * It is needed, but a rule denies it.
            b
              Context: by deny('b')
            c

        Set debug=True on the PackageExporter to see who imports each of them.
        """
    )


def test_with_debug_chains_take_the_place_of_the_advice():
    problems = (Problem("a", ABSENT, "", None, ("x", "y", "a")), Problem("z", ABSENT))
    assert str(PackagingError(problems, debug=True)) == textwrap.dedent(
        """
        * It was not found where it is exported. Install it, or mock it.
            a
              Reached through: x -> y -> a
            z
        """
    )


def test_the_error_carries_its_problems():
    problem = Problem("a", ABSENT)
    error = PackagingError((problem,), debug=True)
    assert error.problems == (problem,) and error.debug


def decision(module: str, action: Action, hook: str | None = None) -> Decision:
    rule = Rule(action, GlobGroup("**"))
    location = Location(module, CodeKind.SOURCE, f"/x/{module}.py", module == "pkg")
    return Decision(module, action, rule, location, hook)


@pytest.fixture
def plan() -> Plan:
    graph = DependencyGraph()
    graph.mark_root("main")
    graph.add_edge(Edge("main", "pkg", ImportKind.REQUIRED, 3, ("a", "b")))
    graph.add_edge(Edge("pkg", "os", ImportKind.GUARDED, 1))
    decisions = [
        decision("main", Action.INTERN),
        decision("pkg", Action.INTERN, "hooks.change"),
        decision("os", Action.EXTERN),
    ]
    notes = (
        Note(NoteKind.ABSENT, "fast", "fast is not installed here", "/x/pkg.py:7"),
        Note(NoteKind.DEAD_RULE, "deny('a')", "deny('a') can never match"),
    )
    return Plan({d.module: d for d in decisions}, (), notes, graph)


def test_a_plan_lists_modules_warnings_and_chains(plan):
    assert plan.modules(Action.INTERN) == ["main", "pkg"]
    assert plan.modules(Action.MOCK) == []
    assert [note.kind for note in plan.warnings()] == [NoteKind.DEAD_RULE]
    assert plan.why("os") == ("main", "pkg", "os")


def test_a_plan_is_shown_with_numbers_problems_and_notes(plan):
    shown = str(Plan(plan.decisions, (Problem("a", DENIED),), plan.notes, plan.graph))
    assert shown.splitlines() == [
        "interned: 2 (main, pkg)",
        "externed: 1 (os)",
        "mocked: 0",
        "problem: a: It is needed, but a rule denies it.",
        "note: /x/pkg.py:7: fast is not installed here",
        "note: deny('a') can never match",
    ]


def test_a_decision_says_why(plan):
    assert plan.decisions["os"].why == "extern('**')"
    assert plan.decisions["pkg"].why == "intern('**'), overridden by hook hooks.change"


def test_a_plan_survives_being_stored(plan):
    stored = plan_to_json(plan, {"/x/pkg.py:7": "pkg/__init__.py:7"})
    again = plan_from_json(stored)
    assert {m: (d.action, d.why) for m, d in again.decisions.items()} == {
        m: (d.action, d.why) for m, d in plan.decisions.items()
    }
    assert set(again.graph.edges()) == set(plan.graph.edges())
    assert again.graph.roots() == ("main",) and again.why("os") == plan.why("os")
    assert [note.place for note in again.notes] == ["pkg/__init__.py:7", None]
    assert plan_to_json(again, {}) == stored


def test_what_is_no_stored_plan_is_refused():
    for wrong in ({}, {"version": 1}, {"modules": 3, "edges": [], "roots": [], "notes": []}):
        with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
            plan_from_json(wrong)
