"""What was measured, what was wanted, and what may be concluded from it.

Everything is a ratio of two things that were measured in the same round, one after the other:
machines differ, and are slower at times. A run is some rounds; several runs tell whether a verdict
comes out again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Side:
    """One quantity of one subject.

    Attributes:
        subject: what was tried: ``"modpack"``, ``"torch.package"``.
        metric: what was measured of it: ``"load only"``.
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
        limits: what would be measured of something that does only what cannot be avoided.
    """

    what: str
    ours: Side
    theirs: Side | Absolute
    at_least: float | None = None
    at_most: float | None = None
    limits: tuple[Side, ...] = ()

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
        ratio: theirs over ours, of the medians of a run's rounds; of several runs, the median of
            that; None if it could not be measured.
        lowest: the smallest ratio in one round.
        highest: the largest.
        in_runs: the ratio of the medians of each run.
        at_limits: the same of theirs over each limit that was measured.
        missing: why it could not be measured.
    """

    goal: Goal
    ratio: float | None = None
    lowest: float = math.nan
    highest: float = math.nan
    in_runs: tuple[float, ...] = ()
    at_limits: tuple[tuple[Side, float], ...] = ()
    missing: str = ""

    @property
    def times_met(self) -> int:
        """In how many runs the medians keep the bound."""
        return sum(ratio >= self.goal.bound for ratio in self.in_runs)

    @property
    def is_met(self) -> bool:
        """Whether they do in every run."""
        return bool(self.in_runs) and self.times_met == len(self.in_runs)

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


@dataclass(frozen=True)
class Measured:
    """What came of one piece of work.

    Attributes:
        name: its name on the command line.
        title: what it is, in words.
        goals: what is wanted.
        runs: what was measured, in each run.
        missing: why nothing was measured of a subject.
        paces: seconds that the machine took for always the same before each run, by how many cores.
    """

    name: str
    title: str
    goals: tuple[Goal, ...]
    runs: tuple[Samples, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    paces: tuple[Mapping[str, float], ...] = ()

    @property
    def outcomes(self) -> list[Outcome]:
        """What came of each goal."""
        return [judged(goal, self.runs, self.missing) for goal in self.goals]


def joined(runs: Sequence[Measured]) -> Measured:
    """Several runs of the same piece of work as one."""
    missing = {subject: why for run in runs for subject, why in run.missing.items()}
    samples = tuple(each for run in runs for each in run.runs)
    paces = tuple(each for run in runs for each in run.paces)
    return replace(runs[0], runs=samples, missing=missing, paces=paces)


def all_rounds(runs: Sequence[Samples]) -> Samples:
    """The rounds of all runs, one after another."""
    sides = dict.fromkeys(side for run in runs for side in run)
    return {side: [value for run in runs for value in run.get(side, ())] for side in sides}


def judged(goal: Goal, runs: Sequence[Samples], missing: Mapping[str, str]) -> Outcome:
    """Compare what was measured with what was wanted.

    Args:
        goal: what was wanted.
        runs: what was measured, in each run.
        missing: why there is nothing of a subject.
    """
    absent = next((side for side in _sides(goal) if any(not run.get(side) for run in runs)), None)
    if absent is not None:
        told = missing.get(absent.subject, "not measured")
        ours_lacks = absent.subject == goal.ours.subject
        return Outcome(goal, missing=told if ours_lacks else f"{absent.subject}: {told}")
    samples = all_rounds(runs)
    pairs = zip(_theirs(goal, samples), samples[goal.ours], strict=False)
    in_rounds = [_ratio(theirs, ours) for theirs, ours in pairs]
    in_runs = _ratios_of_medians(goal, goal.ours, runs)
    at_limits = {limit: _ratios_of_medians(goal, limit, runs) for limit in goal.limits}
    return Outcome(
        goal,
        statistics.median(in_runs),
        min(in_rounds),
        max(in_rounds),
        in_runs,
        tuple((limit, statistics.median(ratios)) for limit, ratios in at_limits.items() if ratios),
    )


def _sides(goal: Goal) -> list[Side]:
    return [goal.ours, *([goal.theirs] if isinstance(goal.theirs, Side) else [])]


def _theirs(goal: Goal, samples: Samples) -> Sequence[float]:
    if isinstance(goal.theirs, Absolute):
        return [goal.theirs.limit] * len(samples[goal.ours])
    return samples[goal.theirs]


def _ratios_of_medians(goal: Goal, ours: Side, runs: Sequence[Samples]) -> tuple[float, ...]:
    """In each run that has it: never of two runs, between which the machine may have changed."""
    return tuple(
        _ratio(statistics.median(_theirs(goal, run)), statistics.median(run[ours]))
        for run in runs
        if ours in run
    )


def _ratio(theirs: float, ours: float) -> float:
    """What is nothing, or less by the noise of a difference, counts as next to nothing."""
    return max(theirs, _LEAST) / max(ours, _LEAST)


def _factor(one: float, other: float) -> float:
    return max(one, other) / max(min(one, other), _LEAST)


_LEAST = 1e-6
"""A microsecond, or less than a byte."""
