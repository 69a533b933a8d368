"""The record of a self-test, as a package holds it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest

from modpack.core.plan import MockEvent, MockEventKind
from modpack.core.selftest import (
    Addition,
    AdditionKind,
    SelfTestCase,
    SelfTestRecord,
    self_test_from_json,
)

RECORD = SelfTestRecord(
    False,
    "process",
    (SelfTestCase(("model", "model.pkl"), 0, True, False, ("output[0]",)),),
    4,
    12.5,
    (Addition("intern", "shop.parts", "shop"), Addition("file", "shop/x.txt")),
    "private fails",
    "so does process",
    ("shop",),
    ("shop-tools",),
    ("shop::sell(Tensor x) -> Tensor",),
    "3.11.7",
    "2.13.0",
    (
        MockEvent("tracker", MockEventKind.LOADED),
        MockEvent("tracker", MockEventKind.USED, "tracker.log", "was called", "shop/net.py:3"),
    ),
)


def test_it_comes_back_as_it_was():
    untimed = replace(RECORD, seconds=0.0)  # how long it took is nothing that a package tells
    assert self_test_from_json(json.loads(json.dumps(RECORD.to_json()))) == untimed


@pytest.mark.parametrize("key", sorted(RECORD.to_json()))
def test_a_damaged_field_is_noticed_or_harmless(key):
    document = {**RECORD.to_json(), key: {"not": ["that"]}}
    if key == "version":
        assert isinstance(self_test_from_json(document), SelfTestRecord)
        return
    with pytest.raises((TypeError, ValueError, KeyError)):
        self_test_from_json(document)


@pytest.mark.parametrize("seconds", [10**400, float("nan"), float("inf"), -1, None, "1"])
def test_a_duration_that_is_none_is_noticed(seconds):
    with pytest.raises(TypeError, match="must be a duration in seconds"):
        self_test_from_json({**RECORD.to_json(), "seconds": seconds})


@pytest.mark.parametrize("kind", ["nonsense", "", "Intern", "mock"])
def test_an_addition_of_a_kind_that_does_not_exist_is_noticed(kind):
    added = [{"kind": kind, "name": "shop.parts", "by": None}]
    expected = f"must be one of intern, extern, file, metadata, not '{kind}'"
    with pytest.raises(TypeError, match=expected):
        self_test_from_json({**RECORD.to_json(), "added": added})


@pytest.mark.parametrize("kind", get_args(AdditionKind))
def test_every_kind_of_addition_is_read(kind):
    added = [{"kind": kind, "name": "shop.parts", "by": None}]
    found = self_test_from_json({**RECORD.to_json(), "added": added})
    assert found.additions == (Addition(kind, "shop.parts"),)


def test_an_example_that_is_listed_twice_is_noticed():
    document = RECORD.to_json()
    with pytest.raises(ValueError, match="example 0 is listed twice"):
        self_test_from_json({**document, "cases": document["cases"] * 2})


def test_a_record_of_an_older_version_does_not_tell_what_was_done_with_mocks():
    document = RECORD.to_json()
    del document["touches"]
    found = self_test_from_json(document)
    assert not found.has_mock_events
    assert found.mock_events == ()
    assert "touches" not in found.to_json()


@pytest.mark.parametrize(
    "touch",
    [
        3,
        {},
        {"module": "m", "kind": "burnt", "name": "", "operation": "", "location": None},
        {"module": 3, "kind": "used", "name": "", "operation": "", "location": None},
        {"module": "m", "kind": "used", "name": "", "operation": "", "location": 3},
    ],
)
def test_a_damaged_touch_is_noticed(touch):
    with pytest.raises((TypeError, ValueError, KeyError)):
        self_test_from_json({**RECORD.to_json(), "touches": [touch]})
