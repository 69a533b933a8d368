"""The facts about mocked modules."""

from __future__ import annotations

from dataclasses import replace

from modpack.core.graph import DependencyGraph, Edge
from modpack.core.observations import MockEvent, MockEventKind, MockRisk, Observations
from modpack.core.plan import MockUse, Plan, UseKind
from modpack.core.rules import Action
from modpack.core.scan import ImportKind
from modpack.core.selftest import SelfTestCase, SelfTestRecord
from modpack.report.audit import mock_facts
from modpack.report.facts import ImporterFacts, ModuleFacts

IMPORTER = ImporterFacts("net", "net.py", 1, ImportKind.REQUIRED)
MODULES = (
    ModuleFacts("net", Action.INTERN),
    ModuleFacts("tracker", Action.MOCK, "mock('tracker')", importers=(IMPORTER,)),
    ModuleFacts("stats", Action.MOCK, "mock('stats')"),
    ModuleFacts("colors", Action.MOCK, "mock('colors')"),
    ModuleFacts("json", Action.EXTERN),
)
LOG = MockUse("tracker", "log", "net", 4, UseKind.FUNCTION_BODY, "Net.forward")
BASE = MockUse("stats", "Base", "net", 7, UseKind.BASE_CLASS)
LOADED = MockEvent("tracker", MockEventKind.LOADED)
USED = MockEvent("tracker", MockEventKind.USED, "tracker.log", "was called", "net.py:4")
CASE = SelfTestCase(("net", "model.pkl"), 0)
SELF_TEST = SelfTestRecord(
    True, "private", (CASE,), 1, 1.0, observations=Observations(mock_events=(LOADED, USED))
)
LOADED_ONLY = SelfTestRecord(
    True, "private", (), 1, 1.0, observations=Observations(mock_events=(LOADED,))
)


def plan() -> Plan:
    """Return a plan with a saved object whose class imports the mocks."""
    graph = DependencyGraph()
    graph.mark_root("<net/model.pkl>")
    graph.add_edge(Edge("<net/model.pkl>", "shop", ImportKind.PICKLE, names=("Net",)))
    graph.add_edge(Edge("shop", "net", ImportKind.REQUIRED, 1))
    return Plan({}, mock_uses=(BASE, LOG), graph=graph)


def test_mocks_are_sorted_by_observed_risk():
    found = mock_facts(plan(), SELF_TEST, MODULES)
    assert [(each.module, each.risk) for each in found] == [
        ("tracker", MockRisk.CALLED),
        ("colors", MockRisk.UNTOUCHED),
        ("stats", MockRisk.UNTOUCHED),
    ]


def test_mock_has_rule_importers_uses_and_events():
    tracker, _, stats = mock_facts(plan(), SELF_TEST, MODULES)
    assert (tracker.rule, tracker.importers) == ("mock('tracker')", (IMPORTER,))
    assert tracker.events == (LOADED, USED)
    (use,) = tracker.uses
    assert (use.module, use.name, use.location) == ("tracker", "log", "net.py:4")
    assert ([use.name for use in stats.uses], stats.events) == (["Base"], ())


def test_mock_is_observed_only_by_successful_runs_of_examples():
    failed = replace(SELF_TEST, passed=False, observations=Observations())
    for record in (None, LOADED_ONLY, failed):
        found = mock_facts(plan(), record, MODULES)
        assert {each.risk for each in found} == {MockRisk.NOT_OBSERVED}
