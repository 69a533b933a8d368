"""Rules: precedence, shadowed rules, and implicit externs."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable

import pytest

from modpack import Action, PackageExporter
from modpack.core.plan import Plan
from modpack.errors import ModpackWarning

Fill = Callable[[PackageExporter], object]


def plan_of(rules: Fill, source: str = "import shop.till.drawer, shop.window") -> Plan:
    exporter = PackageExporter(None)
    rules(exporter)
    exporter.save_source_string("customer", source)
    return exporter.plan()


def actions(plan: Plan) -> dict[str, str]:
    return {m: d.action.value for m, d in plan.decisions.items() if m != "customer"}


@pytest.fixture(autouse=True)
def shop(project) -> None:
    project(
        {
            "shop/__init__.py": "",
            "shop/window.py": "",
            "shop/till/__init__.py": "",
            "shop/till/drawer.py": "",
        }
    )


def test_first_rule_that_matches_wins():
    plan = plan_of(lambda e: (e.mock("shop.till.**"), e.intern("shop.**"), e.extern("**")))
    assert actions(plan) == {
        "shop.till.drawer": "mock",
        "shop.till": "mock",
        "shop": "intern",
        "shop.window": "intern",
    }
    assert plan.decisions["shop.till"].why == "mock('shop.till.**')"


def test_one_star_stays_in_a_component_and_two_cross():
    plan = plan_of(lambda e: (e.intern("shop.*"), e.extern("shop.**")))
    assert actions(plan) == {
        "shop.till.drawer": "extern",
        "shop.till": "intern",
        "shop": "extern",
        "shop.window": "intern",
    }


def test_star_may_be_a_part_of_a_component():
    assert actions(plan_of(lambda e: (e.mock("sh*.w*w"), e.intern("**"))))["shop.window"] == "mock"


def test_excluded_modules_reach_the_next_rule():
    plan = plan_of(lambda e: (e.intern("shop.**", exclude=["shop.till.**"]), e.mock("shop.**")))
    assert actions(plan) == {
        "shop.till.drawer": "mock",
        "shop.till": "mock",
        "shop": "intern",
        "shop.window": "intern",
    }


def test_list_of_patterns_matches_if_any_pattern_matches():
    plan = plan_of(lambda e: (e.mock(["shop.window", "shop.till.*"]), e.intern("**")))
    assert plan.modules(Action.MOCK) == ["shop.till.drawer", "shop.window"]


def test_empty_list_matches_nothing():
    plan = plan_of(lambda e: (e.deny([]), e.intern("**")))
    assert not plan.problems and not plan.notes


@pytest.mark.parametrize("pattern", ["", "a..b", ".a", "a.", "a**", "**b.c"])
def test_invalid_pattern_is_rejected(pattern):
    with pytest.raises(ValueError, match="include"):
        PackageExporter(None).intern(pattern)
    with pytest.raises(ValueError, match="exclude"):
        PackageExporter(None).mock("fine", exclude=["also_fine", pattern])


def test_whole_standard_library_is_extern_without_a_rule():
    names = sorted(sys.stdlib_module_names - {"antigravity", "this"})
    plan = plan_of(lambda e: e.intern("**"), f"import {', '.join(names)}, io, sys, os.path")
    assert not plan.problems
    assert set(names) <= set(plan.modules(Action.EXTERN))
    assert plan.decisions["sys"].why == "implicit: the standard library is extern"
    assert {plan.decisions[name].action for name in ("sys", "io")} == {Action.EXTERN}


def test_torch_is_extern_without_a_rule_and_despite_wildcards():
    code = "import torch.nn.functional\nfrom torch import Tensor, nn, fx"
    for kind in ("intern", "mock", "deny"):
        plan = plan_of(lambda e, kind=kind: getattr(e, kind)("**"), code)
        assert not plan.problems
        assert set(actions(plan).values()) == {"extern"}
    assert plan.decisions["torch"].why == "implicit: torch and modpack are extern"


def test_explicit_rule_decides_standard_library():
    plan = plan_of(lambda e: e.deny("subprocess"), "import subprocess")
    assert [problem.subject for problem in plan.problems] == ["subprocess"]
    plan = plan_of(lambda e: e.intern("colorsys"), "import colorsys")
    assert actions(plan)["colorsys"] == "intern"


def test_explicit_rule_decides_torch_module():
    code = "import torch.distributed.rpc\nimport torch.nn"
    plan = plan_of(lambda e: (e.mock("torch.distributed.**"), e.intern("**")), code)
    assert plan.modules(Action.MOCK) == ["torch.distributed", "torch.distributed.rpc"]
    assert plan.decisions["torch"].action is Action.EXTERN
    assert plan.decisions["torch.nn"].action is Action.EXTERN


def test_explicit_torch_rule_does_not_enable_wildcards():
    plan = plan_of(
        lambda e: e.mock(["torch.distributed.**", "**"]), "import torch.distributed, torch.nn"
    )
    assert plan.modules(Action.MOCK) == ["torch.distributed"]
    assert plan.decisions["torch.nn"].action is Action.EXTERN


def test_denied_parent_is_found_through_child():
    plan = plan_of(lambda e: (e.deny("xml"), e.intern("**")), "import xml.etree.ElementTree")
    assert [problem.subject for problem in plan.problems] == ["xml"]


def test_parents_without_a_rule_follow_their_children_the_strongest_first():
    plan = plan_of(lambda e: (e.mock("shop.till.drawer"), e.intern("shop.window")))
    assert actions(plan) == {
        "shop.till.drawer": "mock",
        "shop.till": "mock",
        "shop.window": "intern",
        "shop": "intern",
    }
    assert plan.decisions["shop"].why == "parent of interned 'shop.window'"


def test_parent_with_a_rule_obeys_the_rule():
    plan = plan_of(lambda e: (e.extern("shop"), e.intern("shop.*"), e.mock("shop.**")))
    assert actions(plan) == {
        "shop": "extern",
        "shop.window": "intern",
        "shop.till": "intern",
        "shop.till.drawer": "mock",
    }


@pytest.mark.parametrize("late", [False, True], ids=["rules-first", "rules-last"])
def test_rules_apply_if_added_before_or_after_save(late):
    def rules(exporter: PackageExporter) -> None:
        exporter.deny("subprocess")
        exporter.mock("shop.till.**")
        exporter.intern("shop.**")

    exporter = PackageExporter(None)
    if not late:
        rules(exporter)
    exporter.save_source_string("customer", "import shop.till.drawer, subprocess, json")
    if late:
        exporter.plan()
        rules(exporter)
    plan = exporter.plan()
    assert actions(plan) == {
        "shop.till.drawer": "mock",
        "shop.till": "mock",
        "shop": "intern",
        "subprocess": "deny",
        "json": "extern",
    }
    assert [problem.subject for problem in plan.problems] == ["subprocess"]


def test_later_rule_for_parent_revises_decisions(project):
    project({"atrium/__init__.py": "import atrium_only, json", "atrium/hall.py": ""})
    exporter = PackageExporter(None)
    exporter.intern("atrium.hall")
    exporter.save_source_string("customer", "import atrium.hall")
    assert [p.subject for p in exporter.plan().problems] == ["atrium_only"]
    exporter.extern("atrium")
    plan = exporter.plan()
    assert not plan.problems
    assert actions(plan) == {"atrium.hall": "intern", "atrium": "extern"}


def dead(rules: Fill) -> list[str]:
    exporter = PackageExporter(None)
    rules(exporter)
    return [str(n) for n in exporter.plan().notes if n.code == "shadowed-rule"]


def test_shadowed_rule_warning_names_both():
    with pytest.warns(ModpackWarning) as caught, PackageExporter(io.BytesIO()) as exporter:
        exporter.intern("shop.**")
        exporter.deny("shop.secret.*")
    assert [str(warning.message) for warning in caught] == [
        "deny('shop.secret.*') can never match: intern('shop.**') already decides all modules "
        "that it matches. Remove the rule, or move it before the others."
    ]


def test_warning_points_at_the_users_code():
    exporter = PackageExporter(io.BytesIO())
    exporter.intern(["shop", "shop"])
    exporter.deny("shop")
    with pytest.warns(ModpackWarning) as by_hand:
        exporter.close()
    with pytest.warns(ModpackWarning) as by_block, PackageExporter(io.BytesIO()) as exporter:
        exporter.intern("shop")
        exporter.deny("shop")
    assert [warning.filename for warning in (*by_hand, *by_block)] == [__file__] * 2


@pytest.mark.parametrize(
    "rules",
    [
        lambda e: (e.intern("shop.*"), e.deny("shop.**")),
        lambda e: (e.intern("shop.**", exclude="shop.secret"), e.deny("shop.secret")),
        lambda e: (e.intern("shop.a*"), e.deny("shop.*a")),
        lambda e: (e.intern("**"), e.deny("subprocess")),
        lambda e: (e.extern("**"), e.mock("torch.distributed.**")),
        lambda e: (e.extern("**"), e.intern(["json.**", "shop"])),
    ],
)
def test_matching_rule_is_not_shadowed(rules):
    assert dead(rules) == []


def test_shadowed_rule_for_stdlib_is_found():
    assert len(dead(lambda e: (e.extern("json.**"), e.deny("json.tool")))) == 1


def test_shadowed_rule_among_many_is_found():
    def rules(exporter: PackageExporter) -> None:
        for number in range(150):
            exporter.extern([f"library_{number}.**", f"other.part_{number}.*.test_*"])
        exporter.mock("library_75.deep.*")

    (note,) = dead(rules)
    assert note.startswith("mock('library_75.deep.*') can never match")


def test_rules_without_shadowing_have_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with PackageExporter(io.BytesIO()) as exporter:
            exporter.intern("shop.**")
            exporter.save_module("shop.window")


def test_user_rule_precedes_preset_in_any_order():
    exporter = PackageExporter(None)
    exporter.use_preset("pinned")
    exporter.save_source_string("customer", "import shop.window")
    exporter.plan()
    exporter.mock("shop.window")
    assert exporter.mocked_modules() == ["shop.window"]
    assert exporter.interned_modules() == ["customer", "shop"]


def test_pinned_interns_local_and_externs_installed():
    exporter = PackageExporter(None)
    exporter.use_preset("pinned")
    exporter.save_source_string("customer", "import shop.window, networkx.utils, json")
    plan = exporter.plan()
    assert not plan.problems
    assert plan.modules(Action.INTERN) == ["customer", "shop", "shop.window"]
    assert plan.modules(Action.EXTERN) == ["json", "networkx", "networkx.utils"]
