"""The self-test record of a package."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest

from modpack.core.codec import record_to_json
from modpack.core.observations import (
    MockEvent,
    MockEventKind,
    Observations,
    UndeclaredImport,
    UnfilledTable,
)
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
    (("model", "model.pkl"),),
    Observations(
        ("shop", "shop.net"),
        ("shop.late",),
        ("shop/x.txt",),
        (UndeclaredImport("tensorboard", "2.0", "tensorboard", "torch.utils"),),
        (
            MockEvent("tracker", MockEventKind.LOADED),
            MockEvent("tracker", MockEventKind.USED, "tracker.log", "was called", "shop/net.py:3"),
        ),
        (UnfilledTable("shop.table", "KINDS", "shop.net.Net"),),
        ("model.scale differs from that of the live object",),
    ),
)


def test_self_test_record_round_trips():
    untimed = replace(RECORD, seconds=0.0)  # packages do not record the duration
    assert self_test_from_json(json.loads(json.dumps(RECORD.to_json()))) == untimed


@pytest.mark.parametrize("key", sorted(RECORD.to_json()))
def test_self_test_from_json_handles_damaged_fields(key):
    document = {**RECORD.to_json(), key: {"not": ["that"]}}
    if key == "version":
        assert isinstance(self_test_from_json(document), SelfTestRecord)
        return
    with pytest.raises((TypeError, ValueError, KeyError)):
        self_test_from_json(document)


@pytest.mark.parametrize("seconds", [10**400, float("nan"), float("inf"), -1, None, "1"])
def test_self_test_from_json_rejects_invalid_duration(seconds):
    with pytest.raises(TypeError, match="must be a duration in seconds"):
        self_test_from_json({**RECORD.to_json(), "seconds": seconds})


@pytest.mark.parametrize("kind", ["nonsense", "", "Intern", "mock"])
def test_self_test_from_json_rejects_unknown_addition_kind(kind):
    added = [{"kind": kind, "name": "shop.parts", "by": None}]
    expected = f"must be one of intern, extern, file, metadata, not '{kind}'"
    with pytest.raises(TypeError, match=expected):
        self_test_from_json({**RECORD.to_json(), "additions": added})


@pytest.mark.parametrize("kind", get_args(AdditionKind))
def test_self_test_from_json_reads_all_addition_kinds(kind):
    added = [{"kind": kind, "name": "shop.parts", "by": None}]
    found = self_test_from_json({**RECORD.to_json(), "additions": added})
    assert found.additions == (Addition(kind, "shop.parts"),)


def test_self_test_from_json_rejects_duplicate_example():
    document = RECORD.to_json()
    with pytest.raises(ValueError, match="example 0 is listed twice"):
        self_test_from_json({**document, "cases": document["cases"] * 2})


@pytest.mark.parametrize(
    "event",
    [
        3,
        {},
        {"module": "m", "kind": "burnt", "name": "", "operation": "", "location": None},
        {"module": 3, "kind": "used", "name": "", "operation": "", "location": None},
        {"module": "m", "kind": "used", "name": "", "operation": "", "location": 3},
    ],
)
def test_self_test_from_json_rejects_damaged_mock_event(event):
    with pytest.raises((TypeError, ValueError, KeyError)):
        observed = {**record_to_json(RECORD.observations), "mock_events": [event]}
        self_test_from_json({**RECORD.to_json(), "observations": observed})


def test_observations_name_what_imported_a_module():
    found = [RECORD.observations.importer_of(m) for m in ("shop.net", "shop.late", "shop.never")]
    assert found == ["loading", "an example", "nothing"]
