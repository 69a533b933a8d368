"""Requests of a self-test, answered from a planner with modules in memory."""

from __future__ import annotations

from modpack.core.rules import Action
from modpack.exporting.requests import MissingResourceResolver
from modpack.selftest.process import ResourceRequest
from tests.unit.exporting.test_planner import planner_of, rule


def test_only_new_resources_lead_to_a_new_plan(monkeypatch):
    planner = planner_of(a="import b", b="", c="")
    planner.add_rule(rule(Action.INTERN, "a", "b", "c"))
    planner.add_source("main", b"", False, True)
    plans = []
    decisions = planner.decisions
    monkeypatch.setattr(planner, "decisions", lambda: plans.append(1) or decisions())
    resolver = MissingResourceResolver(planner)

    def request(module: str) -> list[str]:
        return sorted(resolver.respond(ResourceRequest("module", module, "main", 1)).files)

    assert request("missing") == [] and not plans
    assert request("a") == ["a/__init__.py", "b/__init__.py"]
    assert len(plans) == 2, "before and after"
    assert request("a") == ["a/__init__.py"] and request("b") == ["b/__init__.py"]
    assert len(plans) == 2, "nothing was added"
    assert request("c") == ["c/__init__.py"]
    assert len(plans) == 3
    assert [module for _, module in resolver.added] == ["a", "c"]
