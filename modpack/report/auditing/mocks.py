"""The mocked modules of a package or a plan: who wants them, what for, and what it means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from modpack.core.actions import Action
from modpack.core.plan import Plan
from modpack.core.trialrecord import TrialRecord
from modpack.core.usage import MockRisk, MockTouch, NameUse, risk_of
from modpack.report.auditing.facts import MockFacts
from modpack.report.facts import ModuleFacts

__all__ = ["mock_facts"]

_WORST_FIRST = list(reversed(MockRisk))
_OfMock = TypeVar("_OfMock", NameUse, MockTouch)


def mock_facts(
    plan: Plan, trial: TrialRecord | None, modules: Sequence[ModuleFacts]
) -> tuple[MockFacts, ...]:
    """The facts about every mocked module, the worst risk first.

    Args:
        plan: tells the uses of their names.
        trial: the package's trial, if there was one.
        modules: all modules; those that are mocked are told.
    """
    uses = _by_module(plan.uses)
    touches = _by_module(trial.touches if trial is not None else ())
    is_tried = trial is not None and trial.tells_touches
    facts = [
        MockFacts(
            each.module,
            each.rule,
            each.importers,
            tuple(uses.get(each.module, ())),
            risk_of(uses.get(each.module, ())),
            tuple(touches.get(each.module, ())),
            is_tried,
        )
        for each in modules
        if each.action is Action.MOCK
    ]
    return tuple(sorted(facts, key=lambda each: (_WORST_FIRST.index(each.risk), each.module)))


def _by_module(listed: Sequence[_OfMock]) -> dict[str, list[_OfMock]]:
    found: dict[str, list[_OfMock]] = {}
    for each in listed:
        found.setdefault(each.module, []).append(each)
    return found
