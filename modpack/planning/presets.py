"""Presets: ready-made rules for those who would rather not write any."""

from __future__ import annotations

from collections.abc import Sequence

from modpack.core.actions import Action, Owner
from modpack.core.globs import GlobGroup
from modpack.core.rules import Origin, Rule

__all__ = ["POLICIES", "asks_for_bound", "preset_rules"]


def _preset(action: Action, owner: Owner, label: str) -> Rule:
    return Rule(action, GlobGroup("**"), origin=Origin.PRESET, owner=owner, label=label)


POLICIES: dict[str, tuple[Rule, ...]] = {
    "none": (),
    "pinned": (
        _preset(
            Action.EXTERN, Owner.INSTALLED, "policy pinned: installed distributions are extern"
        ),
        _preset(Action.INTERN, Owner.LOCAL, "policy pinned: your own code is interned"),
    ),
    "hermetic": (
        _preset(Action.EXTERN, Owner.BOUND, "policy hermetic"),
        _preset(
            Action.INTERN,
            Owner.INSTALLED,
            "policy hermetic: pure-Python distributions are interned",
        ),
        _preset(Action.INTERN, Owner.LOCAL, "policy hermetic: your own code is interned"),
    ),
}
"""The rules of each policy, in order. One row each."""


def asks_for_bound(rules: Sequence[Rule]) -> bool:
    """Whether rules tell distributions that can be taken along from those that cannot."""
    return any(rule.owner is Owner.BOUND for rule in rules)


def preset_rules(policy: str) -> tuple[Rule, ...]:
    """The rules that a policy stands for; they come after the user's.

    Raises:
        ValueError: there is no such policy.
    """
    if policy not in POLICIES:
        from difflib import get_close_matches

        known = ", ".join(map(repr, POLICIES))
        close = get_close_matches(policy, POLICIES, 1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"policy must be one of {known}, not {policy!r}{meant}")
    return POLICIES[policy]
