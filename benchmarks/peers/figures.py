"""Measurements, goals, and verdicts.

All verdicts are about ratios of two values from the same round, because machines differ and are
slower at times. A run consists of several rounds. Several runs show whether a verdict is stable.
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
        subject: Tool or limit, such as ``"modpack"`` or ``"torch.package"``.
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
        limits: The same quantity of programs that do only the unavoidable work.
    """

    label: str
    ours: Side
    theirs: Side | Absolute
    at_least: float | None = None
    at_most: float | None = None
    limits: tuple[Side, ...] = ()

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
        ratio: Theirs divided by ours, from the medians of a run's rounds; the median of all runs.
            None if nothing was measured.
        lowest: Smallest ratio of one round.
        highest: Largest ratio of one round.
        in_runs: Ratio of the medians of each run.
        at_limits: Ratio of theirs to each measured limit.
        missing: Reason why nothing was measured.
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
        """The number of runs whose medians meet the bound."""
        return sum(ratio >= self.goal.bound for ratio in self.in_runs)

    @property
    def is_met(self) -> bool:
        """Whether the medians of every run meet the bound."""
        return bool(self.in_runs) and self.times_met == len(self.in_runs)

    @property
    def spread(self) -> float:
        """The largest distance of a round from the medians, as a factor of at least 1."""
        return spread_of(self.ratio or math.nan, self.lowest, self.highest)

    @property
    def margin(self) -> float:
        """The distance of the medians from the bound, as a factor of at least 1."""
        if self.ratio is None:
            return math.nan
        return _factor(self.ratio, self.goal.bound)

    @property
    def is_noisy(self) -> bool:
        """Whether rounds differ by more than the margin of the verdict."""
        return self.ratio is not None and self.spread > self.margin


def spread_of(median: float, lowest: float, highest: float) -> float:
    """Return the larger factor by which an extreme differs from the median."""
    return max(_factor(median, lowest), _factor(median, highest))


@dataclass(frozen=True)
class Measured:
    """The measurements of one row.

    Attributes:
        name: Name on the command line.
        title: Name on the page.
        goals: Goals of the row.
        runs: Measurements of each run.
        missing: Reasons why subjects were not measured, by subject.
        paces: Seconds of the reference work before each run, by number of cores.
    """

    name: str
    title: str
    goals: tuple[Goal, ...]
    runs: tuple[Samples, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    paces: tuple[Mapping[str, float], ...] = ()

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcome of each goal."""
        return [judge(goal, self.runs, self.missing) for goal in self.goals]


def join(runs: Sequence[Measured]) -> Measured:
    """Join several runs of the same row."""
    missing = {subject: why for run in runs for subject, why in run.missing.items()}
    samples = tuple(each for run in runs for each in run.runs)
    paces = tuple(each for run in runs for each in run.paces)
    return replace(runs[0], runs=samples, missing=missing, paces=paces)


def all_rounds(runs: Sequence[Samples]) -> Samples:
    """Return the rounds of all runs, in order."""
    sides = dict.fromkeys(side for run in runs for side in run)
    return {side: [value for run in runs for value in run.get(side, ())] for side in sides}


def judge(goal: Goal, runs: Sequence[Samples], missing: Mapping[str, str]) -> Outcome:
    """Compare measurements with a goal.

    Args:
        goal: The goal.
        runs: Measurements of each run.
        missing: Reasons why subjects were not measured, by subject.
    """
    absent = next((side for side in _sides(goal) if any(not run.get(side) for run in runs)), None)
    if absent is not None:
        reason = missing.get(absent.subject, "not measured")
        is_ours = absent.subject == goal.ours.subject
        return Outcome(goal, missing=reason if is_ours else f"{absent.subject}: {reason}")
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
    """Return the ratio in each run. Runs are not mixed, because the machine may have changed."""
    return tuple(
        _ratio(statistics.median(_theirs(goal, run)), statistics.median(run[ours]))
        for run in runs
        if ours in run
    )


def _ratio(theirs: float, ours: float) -> float:
    """Return a ratio. Noise can make differences of times zero or negative; clip them."""
    return max(theirs, _MINIMUM) / max(ours, _MINIMUM)


def _factor(one: float, other: float) -> float:
    return max(one, other) / max(min(one, other), _MINIMUM)


_MINIMUM = 1e-6
"""A microsecond, or less than a byte."""
