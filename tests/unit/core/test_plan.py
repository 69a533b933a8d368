from __future__ import annotations

import textwrap

import pytest

from modpack.core.graph import CodeKind, DependencyGraph, Edge, Location
from modpack.core.names import GlobGroup
from modpack.core.plan import Decision, PackagingError, PackagingErrorReason, Plan
from modpack.core.plan_json import plan_from_json, plan_to_json
from modpack.core.rules import Action, Rule
from modpack.core.scan import ImportKind
from modpack.diagnostics import Diagnostic

DENIED, ABSENT = PackagingErrorReason.DENIED, PackagingErrorReason.SOURCE_FILE_NOT_FOUND


def problem(code, subject, message, location=None, chain=(), hint=None):
    return Diagnostic.from_code(code, subject, message, location, chain=chain, hint=hint)


def test_packaging_error_groups_problems_by_cause():
    problems = (
        problem(DENIED, "b", "'b' is denied by deny('b')"),
        problem(ABSENT, "a", "'a' cannot be found", "x.py:3", ("x", "a")),
        problem(DENIED, "c", "not wanted", hint="Do without it."),
    )
    assert str(PackagingError(problems)) == textwrap.dedent(
        """
        * A required module cannot be found in the export environment. Install it, or mock it.
            x.py:3: 'a' cannot be found
        * A deny rule matches a required module. Remove the import, or change the rule.
            'b' is denied by deny('b')
            c: not wanted. Do without it.

        Pass debug=True to show the import chains."""
    )


def test_packaging_error_shows_chains_with_debug():
    problems = (
        problem(ABSENT, "a", "'a' cannot be found", chain=("x", "y", "a")),
        problem(ABSENT, "z", "'z' cannot be found"),
    )
    assert str(PackagingError(problems, debug=True)) == textwrap.dedent(
        """
        * A required module cannot be found in the export environment. Install it, or mock it.
            'a' cannot be found
              imported through x -> y -> a
            'z' cannot be found
        """
    )


def test_packaging_error_carries_its_problems():
    problems = (problem(ABSENT, "a", "'a' cannot be found"),)
    error = PackagingError(problems, debug=True)
    assert error.problems == problems and error.debug


def test_packaging_error_always_shows_the_chain_of_a_secret():
    secret = problem(PackagingErrorReason.POSSIBLE_SECRET, "a", "a token", chain=("x", "a"))
    assert "imported through x -> a" in str(PackagingError((secret,)))


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
        Diagnostic.from_code(
            "optional-import-missing", "fast", "fast is not installed here", "/x/pkg.py:7"
        ),
        Diagnostic.from_code("shadowed-rule", "deny('a')", "deny('a') can never match"),
    )
    return Plan({d.module: d for d in decisions}, (), notes, graph)


def test_plan_lists_modules_warnings_and_chains(plan):
    assert plan.modules(Action.INTERN) == ["main", "pkg"]
    assert plan.modules(Action.MOCK) == []
    assert [note.code for note in plan.warnings()] == ["shadowed-rule"]
    assert plan.why("os") == ("main", "pkg", "os")


def test_plan_as_text_shows_counts_problems_and_warnings(plan):
    shown = str(
        Plan(plan.decisions, (problem(DENIED, "a", "'a' is denied"),), plan.notes, plan.graph)
    )
    assert shown.splitlines() == [
        "interned: 2 (main, pkg)",
        "externed: 1 (os)",
        "mocked: 0",
        "error: 'a' is denied. Remove the import, or change the rule.",
        "warning: deny('a') can never match. Remove the rule, or move it before the others.",
        "1 more note of severity info in plan.notes",
    ]


def test_decision_names_its_rule_and_hook(plan):
    assert plan.decisions["os"].why == "extern('**')"
    assert plan.decisions["pkg"].why == "intern('**'), overridden by hook hooks.change"


def test_plan_round_trips_through_json(plan):
    stored = plan_to_json(plan, {"/x/pkg.py:7": "pkg/__init__.py:7"})
    again = plan_from_json(stored)
    assert {m: (d.action, d.why) for m, d in again.decisions.items()} == {
        m: (d.action, d.why) for m, d in plan.decisions.items()
    }
    assert set(again.graph.edges()) == set(plan.graph.edges())
    assert again.graph.roots() == ("main",) and again.why("os") == plan.why("os")
    assert [note.location for note in again.notes] == ["pkg/__init__.py:7", None]
    assert plan_to_json(again, {}) == stored


def test_plan_from_json_rejects_invalid_records():
    for wrong in ({}, {"version": 1}, {"modules": 3, "edges": [], "roots": [], "notes": []}):
        with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
            plan_from_json(wrong)


def test_plan_from_json_rejects_codes_that_are_not_notes(plan):
    note = {"code": "license", "subject": "a", "message": "b", "location": None, "hint": ""}
    with pytest.raises(ValueError, match="'license' is not the code of a note"):
        plan_from_json({**plan_to_json(plan, {}), "notes": [note]})
