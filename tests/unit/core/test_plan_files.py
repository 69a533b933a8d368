"""Files and distributions of a plan survive being recorded, and may be missing."""

from __future__ import annotations

import json

import pytest

from modpack.core.plan import FileKind, Plan, PlannedDistribution, PlannedFile
from modpack.core.plan_json import plan_from_json, plan_to_json

FILES = (
    PlannedFile("shop/words.txt", "/home/me/shop/words.txt", "shop", "shop names it (line 3)"),
    PlannedFile("shop-1.0.dist-info/METADATA", "/x", "shop", "because", FileKind.METADATA),
    PlannedFile("shop/fast.so", "/y", "shop.fast", "it is interned", FileKind.NATIVE),
)
DISTRIBUTIONS = (
    PlannedDistribution("shop", "1.0", "shop-1.0.dist-info", ("shop", "shop.fast")),
    PlannedDistribution("till", "2.0", "till-2.0.dist-info"),
)


def test_recorded_plan_lists_files_without_local_paths():
    recorded = plan_to_json(Plan({}, files=FILES, distributions=DISTRIBUTIONS), {})
    assert "home" not in json.dumps(recorded)
    read = plan_from_json(json.loads(json.dumps(recorded)))
    assert [(f.record, f.owner, f.why, f.kind) for f in read.files] == [
        (f.record, f.owner, f.why, f.kind) for f in FILES
    ]
    assert {file.source for file in read.files} == {""}
    assert read.distributions == DISTRIBUTIONS


@pytest.mark.parametrize("damage", [{"a": {}}, {"a": {"owner": "", "why": "", "kind": "odd"}}, [1]])
def test_damaged_file_records_raise(damage):
    recorded = {**plan_to_json(Plan({}), {}), "files": damage}
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        plan_from_json(recorded)


def test_plan_text_counts_files():
    assert "files: 3 (shop/words.txt" in str(Plan({}, files=FILES))
