"""What was measured, what was wanted, and what may be concluded from it.

Everything is a ratio of two things that were measured in the same round, one after the other:
machines differ, and are slower at times.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Absolute", "Goal", "Outcome", "Samples", "Side", "judged", "spread_of"]


@dataclass(frozen=True)
class Side:
    """One quantity of one subject.

    Attributes:
        subject: what was tried: ``"modpack"``, ``"torch.package"``.
        metric: what was measured of it: ``"to the model"``.
    """

    subject: str
    metric: str


Samples = Mapping[Side, Sequence[float]]
"""For each quantity what each round gave, in seconds or bytes, in the rounds' order."""


@dataclass(frozen=True)
class Absolute:
    """A limit that no peer sets.

    Attributes:
        limit: in seconds or bytes.
        unit: ``"s"`` or ``"B"``.
    """

    limit: float
    unit: str


@dataclass(frozen=True)
class Goal:
    """What is wanted of one quantity. Exactly one of the two bounds is given.

    Attributes:
        what: the quantity, in words.
        ours: the quantity.
        theirs: what it is compared with.
        at_least: theirs must be so many times ours.
        at_most: ours must be no more than so many times theirs.
    """

    what: str
    ours: Side
    theirs: Side | Absolute
    at_least: float | None = None
    at_most: float | None = None

    @property
    def bound(self) -> float:
        """The bound, as a ratio of theirs to ours."""
        if self.at_least is not None:
            return self.at_least
        assert self.at_most is not None
        return 1 / self.at_most


@dataclass(frozen=True)
class Outcome:
    """What came of a goal.

    Attributes:
        goal: the goal.
        ratio: theirs over ours, of the medians of all rounds; None if it could not be measured.
        lowest: the smallest such ratio in one round.
        highest: the largest.
        missing: why it could not be measured.
    """

    goal: Goal
    ratio: float | None = None
    lowest: float = math.nan
    highest: float = math.nan
    missing: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the medians keep the bound."""
        return self.ratio is not None and self.ratio >= self.goal.bound

    @property
    def spread(self) -> float:
        """How far one round is from the medians, as a factor of at least 1."""
        return spread_of(self.ratio or math.nan, self.lowest, self.highest)

    @property
    def margin(self) -> float:
        """How far the medians are from the bound, as a factor of at least 1."""
        if self.ratio is None:
            return math.nan
        return _factor(self.ratio, self.goal.bound)

    @property
    def is_noisy(self) -> bool:
        """Whether rounds differ by more than what separates the verdict from its opposite."""
        return self.ratio is not None and self.spread > self.margin


def spread_of(median: float, lowest: float, highest: float) -> float:
    """The larger of the factors by which the extremes differ from the median."""
    return max(_factor(median, lowest), _factor(median, highest))


def judged(goal: Goal, samples: Samples, missing: Mapping[str, str]) -> Outcome:
    """Compare what was measured with what was wanted.

    Args:
        goal: what was wanted.
        samples: what was measured.
        missing: why there is nothing of a subject.
    """
    ours = samples.get(goal.ours)
    if not ours:
        return Outcome(goal, missing=missing.get(goal.ours.subject, "not measured"))
    if isinstance(goal.theirs, Absolute):
        theirs: Sequence[float] = [goal.theirs.limit] * len(ours)
    else:
        theirs = samples.get(goal.theirs, ())
        if not theirs:
            told = missing.get(goal.theirs.subject, "not measured")
            return Outcome(goal, missing=f"{goal.theirs.subject}: {told}")
    in_rounds = [_ratio(b, a) for a, b in zip(ours, theirs, strict=False)]
    whole = _ratio(statistics.median(theirs), statistics.median(ours))
    return Outcome(goal, whole, min(in_rounds), max(in_rounds))


def _ratio(theirs: float, ours: float) -> float:
    """What is nothing, or less by the noise of a difference, counts as next to nothing."""
    return max(theirs, _LEAST) / max(ours, _LEAST)


def _factor(one: float, other: float) -> float:
    return max(one, other) / max(min(one, other), _LEAST)


_LEAST = 1e-6
"""A microsecond, or less than a byte."""
