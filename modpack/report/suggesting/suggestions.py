"""Suggested rules with everything that speaks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from modpack.core.actions import Action
from modpack.core.environment import RecordedDistribution
from modpack.core.graph import Edge
from modpack.core.imports import ImportKind
from modpack.core.names import root_of
from modpack.core.plan import Plan
from modpack.core.rules import Origin
from modpack.core.usage import MockRisk, NameUse, risk_of
from modpack.report.suggesting.advising import Advice, Adviser, Kind, edges_into
from modpack.report.why.chains import Step, as_step

__all__ = ["Reach", "Suggestion", "described", "mockable"]


class Reach(str, Enum):
    """How code comes to need modules, from the strongest to the weakest."""

    HELD = "held"
    """A saved object holds something of theirs."""
    AT_ONCE = "at-once"
    """They are imported as soon as their importers are."""
    IN_FUNCTIONS = "in-functions"
    """They are imported in functions only."""
    GUARDED = "guarded"
    """They are imported only where the code copes with their absence."""


@dataclass(frozen=True)
class Suggestion:
    """A rule to add, and everything that speaks for it.

    Attributes:
        advice: the rule.
        modules: what it decides.
        distribution: the installed distribution, if there is one.
        is_compiled: whether that has compiled code; None without a distribution.
        reach: how the modules are needed.
        importers: who needs them: the strongest evidence first.
        mock_risk: for what could be mocked instead: what would become of that.
    """

    advice: Advice
    modules: tuple[str, ...]
    distribution: RecordedDistribution | None = None
    is_compiled: bool | None = None
    reach: Reach = Reach.AT_ONCE
    importers: tuple[Step, ...] = ()
    mock_risk: MockRisk | None = None


def described(
    adviser: Adviser, given: Sequence[Advice], plan: Plan, uses: Sequence[NameUse]
) -> tuple[Suggestion, ...]:
    """What speaks for each rule, once all modules are decided.

    Args:
        adviser: who gave the advice.
        given: the rules.
        plan: the plan with all of them.
        uses: what interned code does with the names of extern modules.
    """
    used: dict[str, list[NameUse]] = {}
    for use in uses:
        used.setdefault(use.module, []).append(use)
    decided = _by_rule(plan)
    return tuple(
        _described(adviser, advice, decided.get(advice.patterns, []), plan, used)
        for advice in given
    )


def mockable(given: Sequence[Advice], plan: Plan) -> list[str]:
    """The extern modules that the suggested rules could have mocked: no saved object holds them.

    Args:
        given: the rules.
        plan: the plan with all of them.
    """
    decided = _by_rule(plan)
    groups = (decided.get(advice.patterns, []) for advice in given if _is_mockable(advice))
    return [module for modules in groups if not _is_held(plan, modules) for module in modules]


def _by_rule(plan: Plan) -> dict[tuple[str, ...], list[str]]:
    """The modules that rules of the user's decided, by the patterns of these."""
    found: dict[tuple[str, ...], list[str]] = {}
    for module, decision in sorted(plan.decisions.items()):
        if decision.rule.origin is Origin.USER:
            found.setdefault(decision.rule.pattern.include, []).append(module)
    return found


def _is_mockable(advice: Advice) -> bool:
    return advice.action is Action.EXTERN and advice.kind is Kind.INSTALLED


def _is_held(plan: Plan, modules: Sequence[str]) -> bool:
    return any(edge.kind is ImportKind.PICKLE for edge in edges_into(plan, modules))


def _described(
    adviser: Adviser,
    advice: Advice,
    modules: Sequence[str],
    plan: Plan,
    used: Mapping[str, Sequence[NameUse]],
) -> Suggestion:
    first = modules[0] if modules else root_of(advice.patterns[0])
    is_here = advice.kind is not Kind.MISSING
    edges = sorted(edges_into(plan, modules), key=lambda e: list(Reach).index(_reach([e])))
    can_be_mocked = _is_mockable(advice) and not _is_held(plan, modules)
    uses = [use for module in modules for use in used.get(module, ())]
    return Suggestion(
        advice,
        tuple(modules),
        adviser.distribution_of(first) if is_here else None,
        adviser.is_compiled(first) if is_here else None,
        _reach(edges),
        tuple(as_step(plan, edge) for edge in edges),
        risk_of(uses) if can_be_mocked else None,
    )


def _reach(edges: Sequence[Edge]) -> Reach:
    kinds = {edge.kind for edge in edges}
    if kinds & {ImportKind.PICKLE, ImportKind.SAVED}:
        return Reach.HELD
    if any(kind.runs_at_once for kind in kinds):
        return Reach.AT_ONCE
    if kinds and kinds <= {ImportKind.GUARDED}:
        return Reach.GUARDED
    return Reach.IN_FUNCTIONS if kinds else Reach.AT_ONCE
