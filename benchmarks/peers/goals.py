"""Goals, in few words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from figures import Absolute, Goal, Side

__all__ = ["at_limit", "at_limits", "faster", "no_more", "under"]


def faster(metric: str, peer: str, times: float, ours: str = "modpack") -> Goal:
    """So many times faster than a peer."""
    return Goal(_what(metric, ours), Side(ours, metric), Side(peer, metric), at_least=times)


def no_more(metric: str, peer: str, times: float, ours: str = "modpack") -> Goal:
    """At most so many times what a peer takes."""
    return Goal(_what(metric, ours), Side(ours, metric), Side(peer, metric), at_most=times)


def under(metric: str, limit: float, unit: str, ours: str = "modpack", what: str = "") -> Goal:
    """Less than a quantity."""
    return Goal(what or metric, Side(ours, metric), Absolute(limit, unit), at_most=1)


def at_limit(limit: str, *goals: Goal) -> tuple[Goal, ...]:
    """The same goals, with a subject that does only what cannot be avoided."""
    return at_limits([limit], *goals)


def at_limits(limits: Sequence[str], *goals: Goal) -> tuple[Goal, ...]:
    """The same goals, with several such subjects."""

    def sides(goal: Goal) -> tuple[Side, ...]:
        return tuple(Side(limit, goal.ours.metric) for limit in limits)

    return tuple(replace(goal, limits=sides(goal)) for goal in goals)


def _what(metric: str, ours: str) -> str:
    return metric if ours == "modpack" else f"{metric}; {ours}"
