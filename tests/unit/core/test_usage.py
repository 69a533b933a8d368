"""What packaged code does with mocks, as values."""

from __future__ import annotations

import pytest

from modpack.core.observations import MockEvent, MockEventKind, MockRisk, observed_risk
from modpack.core.plan import MockUse, Plan, UseKind
from modpack.core.plan_json import plan_from_json, plan_to_json

LOADED = MockEvent("tracker", MockEventKind.LOADED)
NAMED = MockEvent("tracker", MockEventKind.NAMED, "tracker.log")
USED = MockEvent("tracker", MockEventKind.USED, "tracker.log", "was called", "net.py:3")


@pytest.mark.parametrize("kind", UseKind)
def test_use_at_import_time_is_not_in_a_function(kind):
    assert kind.is_at_import == (kind not in (UseKind.FUNCTION_BODY, UseKind.TYPE_CHECK))


@pytest.mark.parametrize(
    ("events", "runs", "risk", "text"),
    [
        ([], 0, MockRisk.NOT_OBSERVED, "not observed"),
        ([LOADED, NAMED], 0, MockRisk.NOT_OBSERVED, "not observed"),
        ([], 1, MockRisk.UNTOUCHED, "untouched in 1 run"),
        ([LOADED], 3, MockRisk.UNTOUCHED, "untouched in 3 runs"),
        ([LOADED, NAMED], 2, MockRisk.USED_AT_IMPORT, "used at import in 2 runs"),
        ([LOADED, NAMED, USED], 2, MockRisk.CALLED, "called"),
        ([USED], 0, MockRisk.CALLED, "called"),
    ],
)
def test_risk_is_what_runs_showed(events, runs, risk, text):
    assert observed_risk(events, runs) is risk
    assert risk.describe(runs) == text


def test_mock_uses_round_trip_through_json():
    uses = (
        MockUse("tracker", "log", "net", 3, UseKind.FUNCTION_BODY, "Net.f", ("tools",)),
        MockUse("tracker", "", "net", 4, UseKind.DECORATOR),
    )
    found = plan_from_json(plan_to_json(Plan({}, mock_uses=uses), {}))
    assert found.mock_uses == uses
