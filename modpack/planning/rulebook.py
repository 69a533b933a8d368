"""Which rule decides a module: the user's rules first, then those of a policy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from modpack.core.actions import Owner
from modpack.core.imports import ImportKind
from modpack.core.location import Location
from modpack.core.rules import RUNNING_SCRIPT, Rule, deciding_rule
from modpack.discovery.walk import Walker

__all__ = ["RuleBook", "Staying"]


class _Ownership(Protocol):
    def owner(self, module: str, location: Location | None) -> Owner: ...


class Staying(Protocol):
    """Tells which installed distributions stay where they are (:class:`.Portability`)."""

    def why_bound(self, module: str, location: Location | None) -> str | None:
        """Why a module's distribution stays where it is; None if it can be taken along."""

    def bind(self, externs: Iterable[Location]) -> bool:
        """Learn which modules are extern; tells whether more distributions stay for that."""

    def is_optional(self, module: Location, importer: Location) -> bool:
        """Whether the distribution of an importer does not require that of a module."""


class RuleBook:
    """The rules in the order in which they are asked.

    Args:
        walker: knows where modules are, and who asks for them.
        ownership: tells whose a module is.

    Attributes:
        rules: the user's.
        presets: those of a policy, asked where no rule of the user's matches.
        staying: tells apart what :attr:`.Owner.BOUND` stands for, if rules ask for it.
    """

    def __init__(self, walker: Walker, ownership: _Ownership) -> None:
        self.rules: list[Rule] = []
        self.presets: Sequence[Rule] = ()
        self.staying: Staying | None = None
        self._walker = walker
        self._ownership = ownership

    def rule_of(self, module: str) -> Rule | None:
        """The rule that decides a module, if any does."""
        rules = self._all_rules()
        if module == "__main__":
            return self._rule_of_main()
        owner = self._ownership.owner(module, None)
        if owner is Owner.LOCAL:
            owner = self._ownership.owner(module, self._walker.locate(module))
        if owner is Owner.INSTALLED and self.staying is not None:
            return self._rule_of_installed(module, self.staying)
        return deciding_rule(rules, module, owner)

    def _rule_of_main(self) -> Rule | None:
        """The script that runs elsewhere is another one: only a rule that spells it decides."""
        spelled = next((rule for rule in self._all_rules() if rule.spells("__main__")), None)
        is_pickled = any(
            edge.kind is ImportKind.PICKLE for edge in self._walker.graph.edges_to("__main__")
        )
        return spelled if spelled is not None or is_pickled else RUNNING_SCRIPT

    def _rule_of_installed(self, module: str, staying: Staying) -> Rule | None:
        """The rule of an installed module, which says why if its distribution is bound."""
        why = staying.why_bound(module, self._walker.locate(module))
        owner = Owner.INSTALLED if why is None else Owner.BOUND
        rule = deciding_rule(self._all_rules(), module, owner)
        if why is None or rule is None or rule.owner is not Owner.BOUND:
            return rule
        return replace(rule, label=f"{rule}: {why}")

    def is_spelled(self, module: str) -> bool:
        """Whether a rule of the user's names a module literally."""
        return any(rule.spells(module) for rule in self.rules)

    def unused(self, matched: Collection[Rule]) -> list[Rule]:
        """The user's rules that matched no module."""
        known = set(map(id, matched))
        return [rule for rule in self.rules if id(rule) not in known]

    def _all_rules(self) -> list[Rule]:
        return [*self.rules, *self.presets]
