"""The facts about mocked modules."""

from __future__ import annotations

from modpack.core.plan import MockEvent, MockEventKind, MockRisk, MockUse, Plan, UseKind
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
PLAN = Plan({}, mock_uses=(BASE, LOG), has_mock_uses=True)
CASE = SelfTestCase(("net", "model.pkl"), 0)
SELF_TEST = SelfTestRecord(True, "private", (CASE,), 1, 1.0, mock_events=(LOADED, USED))
LOADED_ONLY = SelfTestRecord(True, "private", (), 1, 1.0, mock_events=(LOADED,))


def test_mocks_are_sorted_by_risk():
    found = mock_facts(PLAN, None, MODULES)
    assert [(each.module, each.risk) for each in found] == [
        ("tracker", MockRisk.REACHABLE),
        ("stats", MockRisk.IMPORT_TIME),
        ("colors", MockRisk.UNUSED),
    ]


def test_mock_has_rule_importers_uses_and_events():
    tracker, stats, _ = mock_facts(PLAN, SELF_TEST, MODULES)
    assert (tracker.rule, tracker.importers) == ("mock('tracker')", (IMPORTER,))
    assert (tracker.uses, tracker.touches) == ((LOG,), (LOADED, USED))
    assert (stats.uses, stats.touches) == ((BASE,), ())


def test_mock_is_tried_if_the_self_test_ran_examples():
    assert all(each.is_tried for each in mock_facts(PLAN, SELF_TEST, MODULES))
    assert not any(each.is_tried for each in mock_facts(PLAN, LOADED_ONLY, MODULES))
    assert not any(each.is_tried for each in mock_facts(PLAN, None, MODULES))
