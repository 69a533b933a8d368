"""Suggested rules as JSON. ``docs/reference/json/suggest.schema.json`` describes it."""

from __future__ import annotations

from collections.abc import Sequence

from modpack.core.actions import Action
from modpack.core.plan import Problem
from modpack.core.planjson import Json
from modpack.core.usage import MockRisk
from modpack.report.as_json import SCHEMA, problem_to_json
from modpack.report.suggesting.as_text import as_option, as_toml, reasons
from modpack.report.suggesting.suggestions import Suggestion
from modpack.report.why.as_json import step_to_json

__all__ = ["suggestions_document"]


def suggestions_document(
    target: str, policy: str, found: Sequence[Suggestion], problems: Sequence[Problem]
) -> dict[str, Json]:
    """Every suggested rule, and what no rule can cure.

    Args:
        target: the target, as it was given.
        policy: the policy whose choices the suggestions follow.
        found: the rules, in the order in which they must be given.
        problems: what is wrong even with them.
    """
    return {
        "schema": SCHEMA,
        "target": target,
        "policy": policy,
        "suggestions": [_suggestion(each) for each in found],
        "problems": [problem_to_json(problem) for problem in problems],
    }


def _suggestion(found: Suggestion) -> Json:
    advice, distribution = found.advice, found.distribution
    return {
        **_rule(advice.action, advice.patterns),
        "kind": advice.kind.value,
        "name": advice.name,
        "modules": list(found.modules),
        "distribution": distribution.name if distribution is not None else None,
        "version": distribution.version if distribution is not None else None,
        "licence": distribution.licence if distribution is not None else None,
        "editable": distribution.editable if distribution is not None else None,
        "compiled": found.is_compiled,
        "reach": found.reach.value,
        "importers": [step_to_json(step) for step in found.importers],
        "reasons": list(reasons(found)),
        "mock_risk": found.mock_risk.value if found.mock_risk is not None else None,
        "alternative": _alternative(found),
    }


def _alternative(found: Suggestion) -> Json:
    if found.mock_risk in (None, MockRisk.REACHABLE):
        return None
    return _rule(Action.MOCK, found.advice.patterns)


def _rule(action: Action, patterns: Sequence[str]) -> dict[str, Json]:
    return {
        "action": action.value,
        "patterns": list(patterns),
        "option": as_option(action, patterns),
        "toml": as_toml(action, patterns),
    }
