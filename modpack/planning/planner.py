"""The planner: rules and hooks applied to what the walk reaches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from modpack.core.actions import Action, Owner
from modpack.core.graph import Edge
from modpack.core.imports import ImportKind
from modpack.core.location import Environment, Location
from modpack.core.plan import Decision, PackagingErrorReason, Plan, Problem
from modpack.core.rules import RUNNING_SCRIPT, Origin, Rule, deciding_rule, inherited, saved
from modpack.discovery.walk import Walker
from modpack.planning.hooks import Match, MatchHooks, Outcome
from modpack.planning.notes import find_notes
from modpack.planning.problems import find_problems, why_not_interned

__all__ = ["Ownership", "Planner"]

_STRENGTH = (Action.INTERN, Action.EXTERN, Action.MOCK)
_PROVISIONAL = (Origin.IMPLICIT, Origin.PARENT, Origin.PRESET)
"""Rules that decide for want of a rule of the user's, and give way to one that comes later."""


class Ownership(Protocol):
    """Who is responsible for modules where they are exported."""

    def owner(self, module: str, location: Location | None) -> Owner:
        """Who is responsible for a module."""

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
        self.walker = Walker(environments, self._decide)
        self._rules: list[Rule] = []
        self._presets: list[Rule] = []
        self._decisions: dict[str, Decision] = {}
        self._ownership = ownership
        self._exporter = exporter
        self._matched: dict[str, Rule] = {}
        self._vetoes: dict[str, str] = {}
        self._reported: dict[Problem, None] = {}

    # -- what the user says ------------------------------------------------------------------

    def add_rule(self, rule: Rule) -> None:
        """Add a rule behind the user's other rules."""
        self._rules.append(rule)
        self._reconsider()

    def use_presets(self, presets: Sequence[Rule]) -> None:
        """Ask these rules where no rule of the user's matches."""
        self._presets = list(presets)
        self._reconsider()

    def add_source(self, module: str, source: bytes, is_package: bool, follow: bool) -> None:
        """Intern a module whose source the user gave; only a hook can say otherwise."""
        if self._is_saved(module):
            self.walker.provide(module, source, is_package, follow)

    def add_module(self, module: str, follow: bool) -> None:
        """Intern a module that is here; only a hook can say otherwise."""
        problem = why_not_interned(self.walker, module)
        if problem is not None:
            self._reported[problem] = None
        elif self._is_saved(module):
            self.walker.include(module, follow)

    def _is_saved(self, module: str) -> bool:
        """Decide a module that the user saves by name."""
        self._decisions[module] = decision = self._saved(module)
        if decision.action is not Action.INTERN:
            self.walker.graph.mark_root(module)
            self.walker.settle(module, decision.action)
        return decision.action is Action.INTERN

    def _saved(self, module: str) -> Decision:
        rule = self._rule_of(module)
        as_saved = Decision(module, Action.INTERN, saved(module))
        if rule is None or rule.action is not Action.INTERN:
            return as_saved
        if self._matched.get(module) is rule:  # its hooks have spoken
            before = self._decisions[module]
            return before if before.overridden_by else as_saved
        outcome = self._ask_hooks(module, rule)
        if outcome.overridden_by is None:
            return as_saved
        return Decision(module, outcome.action, rule, None, outcome.overridden_by, outcome.fired)

    def add_resource(self, node: str, edges: Iterable[Edge], follow: bool) -> None:
        """Note what a saved resource refers to, and follow it.

        Args:
            node: the resource's name in the graph.
            edges: its references.
            follow: whether to walk on to the modules that they lead to.
        """
        if follow:
            self.walker.graph.mark_root(node)
            self.walker.reach(list(edges))
        else:
            self.walker.note(list(edges))

    # -- what follows from it ----------------------------------------------------------------

    def plan(self) -> Plan:
        """All decisions, and everything that is wrong or noteworthy by now."""
        decisions = self.decisions()
        problems = [*self._reported, *self._veto_problems(decisions)]
        unused = self._unused()
        required = [rule for rule in unused if not rule.allow_empty]
        problems += find_problems(self.walker, decisions, required)
        plan = Plan(decisions, tuple(problems), (), self.walker.graph)
        notes = find_notes(plan, self.walker, self._rules, unused, self._ownership)
        return Plan(plan.decisions, plan.problems, tuple(notes), plan.graph)

    def decisions(self) -> dict[str, Decision]:
        """One decision for each module that something leads to, as far as it can be made."""
        self._settle()
        reached = self.walker.graph.reached()
        return {m: self._located(d) for m, d in self._decisions.items() if m in reached}

    def _located(self, decision: Decision) -> Decision:
        """A decision with the place of its module, where that matters."""
        if decision.rule.origin is Origin.IMPLICIT and decision.action is Action.EXTERN:
            return decision
        return replace(decision, location=self.walker.locate(decision.module))

    def _settle(self) -> None:
        """Decide what can be decided: new rules first, then parents after their children."""
        if self.hooks.current is not None:
            return  # a hook asks, in the middle of the walk
        self.walker.retry()
        progress = True
        while progress:
            progress = False
            for module in list(self.walker.undecided):
                child = self._decided_child(module)
                if child is not None:
                    action = self._decisions[child].action
                    rule = inherited(action, module, child)
                    self._decisions[module] = Decision(module, action, rule)
                    self.walker.settle(module, action)
                    progress = True

    def _decided_child(self, parent: str) -> str | None:
        """The child that a package without a rule follows, the strongest action first."""
        edges = self.walker.graph.edges_to(parent)
        children = [e.importer for e in edges if e.kind is ImportKind.PARENT]
        for action in _STRENGTH:
            for child in children:
                decision = self._decisions.get(child)
                if decision is not None and decision.action is action:
                    return child
        return None

    def _reconsider(self) -> None:
        """Take back what was decided for want of a rule, where there is one by now."""
        for module, decision in list(self._decisions.items()):
            if decision.rule.origin in _PROVISIONAL:
                rule = self._rule_of(module)
                if rule is not None and rule != decision.rule:
                    self._forget(module)

    def _forget(self, module: str) -> None:
        del self._decisions[module]
        self._matched.pop(module, None)
        self._vetoes.pop(module, None)
        self.walker.reopen(module)

    def _unused(self) -> list[Rule]:
        """The user's rules that matched no module."""
        matched = set(map(id, self._matched.values()))
        return [rule for rule in self._rules if id(rule) not in matched]

    def _veto_problems(self, decisions: Mapping[str, Decision]) -> Iterator[Problem]:
        for module, reason in self._vetoes.items():
            if module in decisions:
                chain = self.walker.graph.shortest_path(module)
                yield Problem(module, PackagingErrorReason.VETOED, reason, None, chain)

    # -- one module --------------------------------------------------------------------------

    def _decide(self, module: str) -> Action | None:
        rule = self._rule_of(module)
        if rule is None or self._is_better_absent(module, rule) or self._is_made_up(module):
            return None
        outcome = self._ask_hooks(module, rule)
        if module in self._decisions:  # a hook saved it by name
            return self._decisions[module].action
        self._decisions[module] = Decision(
            module, outcome.action, rule, None, outcome.overridden_by, outcome.fired
        )
        return outcome.action

    def _ask_hooks(self, module: str, rule: Rule) -> Outcome:
        self._matched[module] = rule
        match = Match(module, rule, rule.action, self.walker.graph.edges_to(module))
        outcome = self.hooks.run(self._exporter, match)
        if outcome.veto is not None:
            self._vetoes[module] = outcome.veto
        return outcome

    def _is_better_absent(self, module: str, rule: Rule) -> bool:
        """Whether a module is not here, and all code that imports it copes with that.

        Only a rule that spells the name, and does not need the source, decides it even so.
        """
        edges = self.walker.graph.edges_to(module)
        is_implicit = rule.origin is Origin.IMPLICIT
        if is_implicit or not all(edge.kind.may_be_absent for edge in edges):
            return False
        if rule.action is not Action.INTERN and rule.spells(module):
            return False
        return self.walker.locate(module) is None

    def _is_made_up(self, module: str) -> bool:
        """Whether a package exists only as the folder of a module whose source was given."""
        edges = self.walker.graph.edges_to(module)
        is_folder = all(
            edge.kind is ImportKind.PARENT
            and self.walker.actions.get(edge.importer, Action.INTERN) is Action.INTERN
            for edge in edges
        )
        return is_folder and bool(edges) and self.walker.locate(module) is None

    def _rule_of(self, module: str) -> Rule | None:
        rules = self._all_rules()
        if module == "__main__":
            return self._rule_of_main()
        owner = self._ownership.owner(module, None)
        if owner is Owner.LOCAL and any(rule.owner is not None for rule in rules):
            owner = self._ownership.owner(module, self.walker.locate(module))
        return deciding_rule(rules, module, owner)

    def _rule_of_main(self) -> Rule | None:
        """The script that runs elsewhere is another one: only a rule that spells it decides."""
        spelled = next((rule for rule in self._all_rules() if rule.spells("__main__")), None)
        is_pickled = any(
            edge.kind is ImportKind.PICKLE for edge in self.walker.graph.edges_to("__main__")
        )
        return spelled if spelled is not None or is_pickled else RUNNING_SCRIPT

    def _all_rules(self) -> list[Rule]:
        """The rules in the order in which they are asked: the user's, then presets'."""
        return [*self._rules, *self._presets]
