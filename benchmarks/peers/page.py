"""The page with the tables."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from figures import Absolute, Goal, Outcome, Samples, judged, spread_of

__all__ = ["Measured", "goals_table", "rendered", "shown_quantity", "shown_ratio"]


@dataclass(frozen=True)
class Measured:
    """What came of one piece of work.

    Attributes:
        name: its name on the command line.
        title: what it is, in words.
        goals: what is wanted.
        samples: what was measured.
        missing: why nothing was measured of a subject.
    """

    name: str
    title: str
    goals: tuple[Goal, ...]
    samples: Samples
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def outcomes(self) -> list[Outcome]:
        """What came of each goal."""
        return [judged(goal, self.samples, self.missing) for goal in self.goals]


def rendered(rows: Sequence[Measured], rounds: int, share: int = 1, plot: str = "") -> str:
    """The page, in Markdown.

    Args:
        rows: what was measured.
        rounds: how often.
        share: the sizes are those of the goals divided by this.
        plot: the plot's path, from the page.
    """
    parts = [_HEAD, _made(rows, rounds, share)]
    if plot:
        parts.append(f"![Ratios, and the goals for them]({plot})")
    parts += [goals_table(rows), _FIGURES, *map(_figures, rows)]
    return "\n\n".join(parts) + "\n"


def _made(rows: Sequence[Measured], rounds: int, share: int) -> str:
    noisy = sum(outcome.is_noisy for row in rows for outcome in row.outcomes)
    made = (
        f"Made with Python {platform.python_version()} on {platform.system()}, {os.cpu_count()} "
        f"cores, in {rounds} rounds. {noisy or 'None'} of the verdicts below "
        f"{'is' if noisy < 2 else 'are'} noisy."
    )
    if share != 1:
        made += f"\n\n**Not the real sizes: all are divided by {share}. This is a smoke test.**"
    return made


def goals_table(rows: Sequence[Measured]) -> str:
    """What is wanted, and what came of it."""
    lines = [
        "| work | quantity | goal | measured | single rounds | met |",
        "|---|---|---|---:|---:|---|",
    ]
    for row in rows:
        title = row.title
        for outcome in row.outcomes:
            cells = [title, outcome.goal.what, _wanted(outcome.goal), *_outcome(outcome)]
            lines.append(f"| {' | '.join(cells)} |")
            title = ""
    return "\n".join(lines)


def _outcome(outcome: Outcome) -> list[str]:
    if outcome.ratio is None:
        return ["", "", outcome.missing]
    verdict = "yes" if outcome.is_met else "**no**"
    values = outcome.ratio, outcome.lowest, outcome.highest
    told, lowest, highest = (_as_wanted(outcome.goal, value) for value in values)
    if outcome.goal.at_least is None:
        lowest, highest = highest, lowest
    return [told, f"{lowest} to {highest}", f"{verdict}, noisy" if outcome.is_noisy else verdict]


def _wanted(goal: Goal) -> str:
    if isinstance(goal.theirs, Absolute):
        return f"under {shown_quantity(goal.theirs.limit, goal.theirs.unit)}"
    name = goal.theirs.subject
    if goal.theirs.subject == goal.ours.subject:
        name = goal.theirs.metric
    if goal.at_least is not None:
        return f"≥ {shown_ratio(goal.at_least)} faster than {name}"
    return f"≤ {shown_ratio(1 / goal.bound)} of {name}"


def _as_wanted(goal: Goal, ratio: float) -> str:
    """A ratio of theirs to ours, in the way in which the goal is put."""
    if isinstance(goal.theirs, Absolute):
        return shown_quantity(goal.theirs.limit / ratio, goal.theirs.unit)
    return shown_ratio(ratio if goal.at_least is not None else 1 / ratio)


def _figures(row: Measured) -> str:
    metrics = list(dict.fromkeys(side.metric for side in row.samples))
    subjects = list(dict.fromkeys(side.subject for side in row.samples))
    lines = [f"### {row.title}", ""]
    lines.append(f"| | {' | '.join(metrics)} |")
    lines.append(f"|---|{'---:|' * len(metrics)}")
    for subject in subjects:
        found = {s.metric: values for s, values in row.samples.items() if s.subject == subject}
        cells = [_median(found[m], m) if m in found else "" for m in metrics]
        lines.append(f"| {subject} | {' | '.join(cells)} |")
    for subject, why in row.missing.items():
        lines.append(f"| {subject} | {why} |{' |' * (len(metrics) - 1)}")
    return "\n".join(lines)


def _median(values: Sequence[float], metric: str) -> str:
    unit = "B" if "memory" in metric else "s"
    median = statistics.median(values)
    if median <= 0:
        return shown_quantity(0, unit)
    spread = spread_of(median, min(values), max(values))
    return f"{shown_quantity(median, unit)} ± {spread - 1:.0%}"


def shown_quantity(value: float, unit: str) -> str:
    """Seconds or bytes, for people."""
    if unit == "B":
        return f"{value / 1e6:,.1f} MB"
    for factor, name in ((1, "s"), (1e3, "ms")):
        if value * factor >= 1:
            return f"{_three_digits(value * factor)} {name}"
    return f"{_three_digits(value * 1e6)} µs"


def shown_ratio(ratio: float) -> str:
    """A ratio, for people: 753x."""
    return f"{_three_digits(ratio)}x"


def _three_digits(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


_HEAD = """\
# Performance

<!-- Made by `make bench`. Do not edit. -->

modpack beside torch.package, `torch.save`, safetensors and cloudpickle. Each case is a process of
its own. Before the clock starts, it has imported its tool, and has saved or loaded something tiny
with it, for what is imported only then; the figures tell how long that took. In every round each
subject has its turn, and each round begins with another one. A ratio is that of the medians;
"single rounds" gives the smallest and the largest ratio that one round alone would have given. A
verdict is *noisy* where these are farther from the medians than the medians are from the goal.

What is loaded is in the page cache. `torch.save` and the others leave what they write in the page
cache; a save of modpack ends when the disk has it, and includes a sha256 and a crc32 of everything.
"with a pass" is loading followed by the sum of every tensor. safetensors holds tensors only: there,
the model is made on the meta device and takes them over. cloudpickle names the model's class
instead of taking it along. torch.package gets a higher recursion limit than usual, without which
it cannot take sympy along. Private memory is that of the whole process, the sum of `Private_*` in
`/proc/self/smaps_rollup`."""

_FIGURES = """\
## Figures

Medians, and how far the farthest round is from them."""
