"""Measurements and goals.

Goals are about ratios of two values from the same rounds, because machines differ and are slower at
times.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Side:
    """One quantity of one subject.

    Attributes:
        subject: Tool, such as ``"modpack"`` or ``"torch.package"``.
        metric: Measured quantity, such as ``"load only"``.
    """

    subject: str
    metric: str


Samples = Mapping[Side, Sequence[float]]
"""Seconds or bytes of each round, in order, by quantity."""


@dataclass(frozen=True)
class Absolute:
    """An absolute limit, without a peer.

    Attributes:
        limit: Seconds or bytes.
        unit: ``"s"`` or ``"B"``.
    """

    limit: float
    unit: str


@dataclass(frozen=True)
class Goal:
    """A goal for one quantity, with exactly one of the two bounds.

    Attributes:
        label: Name of the quantity on the page.
        ours: modpack's quantity.
        theirs: The peer's quantity.
        at_least: Minimum of theirs divided by ours.
        at_most: Maximum of ours divided by theirs.
    """

    label: str
    ours: Side
    theirs: Side | Absolute
    at_least: float | None = None
    at_most: float | None = None

    @property
    def bound(self) -> float:
        """The bound as a minimum of theirs divided by ours."""
        if self.at_least is not None:
            return self.at_least
        assert self.at_most is not None
        return 1 / self.at_most


@dataclass(frozen=True)
class Outcome:
    """The outcome of a goal.

    Attributes:
        goal: The goal.
        ratio: Theirs divided by ours, from the medians of the rounds. None if nothing was measured.
        lowest: Smallest ratio of one round.
        highest: Largest ratio of one round.
        missing: Reason why nothing was measured.
    """

    goal: Goal
    ratio: float | None = None
    lowest: float = math.nan
    highest: float = math.nan
    missing: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the medians meet the bound."""
        return self.ratio is not None and self.ratio >= self.goal.bound


@dataclass(frozen=True)
class Measured:
    """The measurements of one row.

    Attributes:
        name: Name on the command line.
        title: Name on the page.
        goals: Goals of the row.
        samples: Measurements of all rounds.
        missing: Reasons why subjects were not measured, by subject.
    """

    name: str
    title: str
    goals: tuple[Goal, ...]
    samples: Samples
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcome of each goal."""
        return [judge(goal, self.samples, self.missing) for goal in self.goals]


def judge(goal: Goal, samples: Samples, missing: Mapping[str, str]) -> Outcome:
    """Compare measurements with a goal.

    Args:
        goal: The goal.
        samples: Measurements of all rounds.
        missing: Reasons why subjects were not measured, by subject.
    """
    for side in (goal.ours, goal.theirs):
        if isinstance(side, Side) and not samples.get(side):
            reason = missing.get(side.subject, "not measured")
            is_ours = side.subject == goal.ours.subject
            return Outcome(goal, missing=reason if is_ours else f"{side.subject}: {reason}")
    ours = samples[goal.ours]
    if isinstance(goal.theirs, Absolute):
        theirs: Sequence[float] = [goal.theirs.limit] * len(ours)
    else:
        theirs = samples[goal.theirs]
    in_rounds = [_ratio(*pair) for pair in zip(theirs, ours, strict=False)]
    ratio = _ratio(statistics.median(theirs), statistics.median(ours))
    return Outcome(goal, ratio, min(in_rounds), max(in_rounds))


def _ratio(theirs: float, ours: float) -> float:
    """Return a ratio. Noise can make differences of times zero or negative; clip them."""
    return max(theirs, _MINIMUM) / max(ours, _MINIMUM)


_MINIMUM = 1e-6
"""A microsecond, or less than a byte."""
