"""What packaged code does with mocks, as values."""

from __future__ import annotations

import pytest

from modpack.core.plan import MockRisk, MockUse, Plan, UseKind, risk_of
from modpack.core.plan_json import plan_from_json, plan_to_json

AT_IMPORT = {
    *(UseKind.BASE_CLASS, UseKind.DECORATOR, UseKind.CALL, UseKind.MODULE_LEVEL, UseKind.ANNOTATION)
}


def use(kind: UseKind, is_live: bool = True, is_called_later: bool = False) -> MockUse:
    return MockUse("tracker", "log", "net", 3, kind, "f", is_live, (), is_called_later)


@pytest.mark.parametrize("kind", UseKind)
def test_use_at_import_time_is_import_time_risk(kind):
    assert kind.is_at_import == (kind in AT_IMPORT)


@pytest.mark.parametrize("kind", UseKind)
def test_only_a_use_in_a_live_function_is_reachable_by_its_kind(kind):
    assert (risk_of([use(kind)]) is MockRisk.REACHABLE) == (kind is UseKind.FUNCTION_BODY)


def test_mock_decorator_of_callable_function_is_reachable():
    assert risk_of([use(UseKind.DECORATOR, is_called_later=True)]) is MockRisk.REACHABLE
    assert risk_of([use(UseKind.DECORATOR)]) is MockRisk.IMPORT_TIME


def test_mock_without_live_uses_is_unused():
    assert risk_of([]) is MockRisk.UNUSED
    assert risk_of([use(UseKind.FUNCTION_BODY, is_live=False)]) is MockRisk.UNUSED


def test_mock_risk_is_that_of_worst_use():
    uses = [use(UseKind.FUNCTION_BODY, is_live=False), use(UseKind.TYPE_CHECK)]
    assert risk_of(uses) is MockRisk.IMPORT_TIME
    assert risk_of([*uses, use(UseKind.FUNCTION_BODY)]) is MockRisk.REACHABLE


def test_mock_uses_round_trip_through_json():
    uses = (
        MockUse("tracker", "log", "net", 3, UseKind.FUNCTION_BODY, "Net.f", False, ("tools",)),
        MockUse("tracker", "", "net", 4, UseKind.DECORATOR, is_called_later=True),
    )
    found = plan_from_json(plan_to_json(Plan({}, mock_uses=uses, has_mock_uses=True), {}))
    assert found.mock_uses == uses
    assert found.has_mock_uses


def test_has_mock_uses_round_trips_through_json():
    assert not plan_from_json(plan_to_json(Plan({}), {})).has_mock_uses
    assert plan_from_json(plan_to_json(Plan({}, has_mock_uses=True), {})).has_mock_uses
