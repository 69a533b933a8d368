"""The planner: rules and hooks applied to what the walk reaches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from modpack.core.actions import Action, Owner
from modpack.core.graph import Edge
from modpack.core.imports import ImportKind
from modpack.core.location import Environment, Location
from modpack.core.plan import Decision, PackagingErrorReason, Plan, Problem
from modpack.core.rules import IMPLICIT, Rule, deciding_rule, inherited, saved
from modpack.discovery.walk import Walker
from modpack.planning.hooks import Match, MatchHooks
from modpack.planning.notes import find_notes
from modpack.planning.problems import find_problems

__all__ = ["Ownership", "Planner"]

_STRENGTH = (Action.INTERN, Action.EXTERN, Action.MOCK)


class Ownership(Protocol):
    """Who is responsible for modules where they are exported."""

    def owner(self, module: str, location: Location | None) -> Owner: ...

    def requires(self, module: str, location: Location, other: Location) -> bool:
        """Whether a module's distribution requires the distribution of another."""


class Planner:
    """Decides each module once, at the moment at which it is reached.

    Args:
        environments: where modules come from, first choice first.
        ownership: tells whose a module is.
        exporter: what hooks are called with.
    """

    def __init__(
        self, environments: Sequence[Environment], ownership: Ownership, exporter: object
    ) -> None:
        self.hooks = MatchHooks()
        self.rules: list[Rule] = []
        self.presets: list[Rule] = []
        self.decisions: dict[str, Decision] = {}
        self.walker = Walker(environments, self._decide)
        self._ownership = ownership
        self._exporter = exporter
        self._matched: set[int] = set()
        self._problems: list[Problem] = []

    def add_source(self, module: str, source: bytes, is_package: bool, follow: bool) -> None:
        """Intern a module whose source the user gave."""
        rule = saved(module)
        self.decisions[module] = Decision(module, Action.INTERN, rule, None)
        self.walker.provide(module, source, is_package, follow)

    def add_resource(self, node: str, edges: Iterable[Edge]) -> None:
        """Follow what a saved resource refers to."""
        self.walker.graph.mark_root(node)
        self.walker.reach(list(edges))

    def report(self, problem: Problem) -> None:
        """Keep a problem that was found elsewhere for the plan."""
        self._problems.append(problem)

    def plan(self) -> Plan:
        """All decisions, and everything that is wrong or noteworthy by now."""
        self.settle()
        found = find_problems(self.walker, self.decisions, self._unmatched())
        plan = Plan(dict(self.decisions), (*self._problems, *found), (), self.walker.graph)
        notes = find_notes(plan, self.walker, self.rules, self._ownership)
        return Plan(plan.decisions, plan.problems, tuple(notes), plan.graph)

    def all_rules(self) -> list[Rule]:
        """The rules in the order in which they are asked: the user's, then presets'."""
        return [*self.rules, *self.presets]

    def settle(self) -> None:
        """Decide what can be decided: new rules first, then parents after their children."""
        self.walker.retry()
        progress = True
        while progress:
            progress = False
            for module in list(self.walker.undecided):
                child = self._decided_child(module)
                if child is not None:
                    action = self.decisions[child].action
                    rule = inherited(action, module, child)
                    location = self.walker.locate(module)
                    self.decisions[module] = Decision(module, action, rule, location)
                    self.walker.settle(module, action)
                    progress = True

    def _decided_child(self, parent: str) -> str | None:
        """The child that a package without a rule follows, the strongest action first."""
        edges = self.walker.graph.edges_to(parent)
        children = [e.importer for e in edges if e.kind is ImportKind.PARENT]
        for action in _STRENGTH:
            for child in children:
                decision = self.decisions.get(child)
                if decision is not None and decision.action is action:
                    return child
        return None

    def _unmatched(self) -> list[Rule]:
        rules = self.all_rules()
        return [r for r in rules if not r.allow_empty and id(r) not in self._matched]

    def _decide(self, module: str) -> Action | None:
        rule = self._rule_of(module)
        if rule is None:
            return None
        implicit = rule in IMPLICIT
        location = None if implicit else self.walker.locate(module)
        if location is None and not implicit and not rule.spells(module) and self._absent(module):
            return None
        self._matched.add(id(rule))
        match = Match(module, rule, rule.action, self.walker.graph.edges_to(module))
        outcome = self.hooks.run(self._exporter, match)
        if outcome.veto is not None:
            problem = Problem(module, PackagingErrorReason.VETOED, outcome.veto)
            self._problems.append(problem)
        self.decisions[module] = Decision(
            module, outcome.action, rule, location, outcome.overridden_by
        )
        return outcome.action

    def _rule_of(self, module: str) -> Rule | None:
        rules = self.all_rules()
        owner = self._ownership.owner(module, None)
        if owner is Owner.LOCAL and any(rule.owner is not None for rule in rules):
            owner = self._ownership.owner(module, self.walker.locate(module))
        return deciding_rule(rules, module, owner)

    def _absent(self, module: str) -> bool:
        """Whether all code that imports a module copes with its absence."""
        edges = self.walker.graph.edges_to(module)
        return all(edge.kind.may_be_absent for edge in edges)
