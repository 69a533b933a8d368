"""Comparison of hooks."""

from __future__ import annotations

from modpack.core.hookspec import CallableSpec, HookSpec
from modpack.report.diff_facts import Change
from modpack.report.diff_hooks import compare_hooks
from modpack.report.facts import HookFacts
from modpack.report.text_diff import WorkBudget

CLIP = CallableSpec("reference", "lib.clip")
LOG = CallableSpec("reference", "lib.log")


def hook(calls, position=0, target="layer", kind="forward", **more):
    spec = HookSpec(f"{target}/{kind}/{position}", kind, (target,), position, calls, **more)
    return HookFacts("m/m.pkl", spec)


def compared(before, after):
    return list(compare_hooks(before, after, with_source=True, effort=WorkBudget()))


def test_equal_hooks_have_no_difference():
    assert compared([hook(CLIP), hook(LOG, 1)], [hook(CLIP), hook(LOG, 1)]) == []


def test_inserted_hook_changes_positions_only():
    moved, added = compared([hook(CLIP)], [hook(LOG), hook(CLIP, 1)])
    assert added.change is Change.ADDED
    assert ("calls", None, "lib.log") in added.fields
    assert (moved.change, [f.name for f in moved.fields]) == (Change.CHANGED, ["position"])


def test_other_callable_on_same_target_is_another_hook():
    removed, added = compared([hook(CLIP)], [hook(LOG)])
    assert (removed.change, added.change) == (Change.REMOVED, Change.ADDED)
    assert ("calls", "lib.clip", None) in removed.fields


def test_hooks_with_one_name_are_paired_in_order():
    one, other = (CallableSpec("source", "lib.<lambda>", f"lambda m, a, o: {n}") for n in "xy")
    (removed,) = compared([hook(one), hook(other, 1)], [hook(one)])
    assert ("source", "lambda m, a, o: y", None) in removed.fields


def test_hooks_of_other_kind_or_target_are_not_paired():
    changes = [each.change for each in compared([hook(CLIP)], [hook(CLIP, target="head")])]
    assert changes == [Change.REMOVED, Change.ADDED]
    assert len(compared([hook(CLIP)], [hook(CLIP, kind="forward_pre")])) == 2


def test_hook_sources_are_compared_line_by_line():
    old = CallableSpec("source", "lib.<lambda>", "lambda m, a, o: o\n", "lib:3")
    new = old._replace(source="lambda m, a, o: o * 2\n", location="lib:9")
    (found,) = compared([hook(old)], [hook(new)])
    assert found.fields == ()
    assert "+lambda m, a, o: o * 2" in found.text.unified


def test_location_of_hook_source_is_ignored():
    old = CallableSpec("source", "lib.<lambda>", "lambda m, a, o: o\n", "lib:3")
    assert compared([hook(old)], [hook(old._replace(location="lib:9"))]) == []


def test_hook_flags_are_compared():
    (found,) = compared([hook(CLIP)], [hook(CLIP, flags={"always_call": True})])
    assert [(f.name, f.after) for f in found.fields] == [("flags", "always_call=True")]
