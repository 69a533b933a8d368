"""The generated parts of the performance page and the README."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distributions

from figures import Absolute, Goal, Measured, Outcome, Side


def rendered(rows: Sequence[Measured], rounds: int, share: int = 1) -> str:
    """Return the part of the page as Markdown.

    Args:
        rows: Measurements.
        rounds: Number of rounds.
        share: Divisor of all sizes.
    """
    parts = []
    if share != 1:
        parts.append(f"**Smoke test: all sizes are divided by {share}.**")
    parts += [highlights_table(rows, rounds), _READING]
    parts.append(_folded("The project's goals, met or not", _GOALS, goals_table(rows)))
    parts.append(_folded("Tables of all cases", _FIGURES, *map(_figures, rows)))
    return "\n\n".join(parts) + "\n"


def measured_with(rounds: int) -> str:
    """Describe the environment of a measurement."""
    return (
        f"Measured with Python {platform.python_version()}, {_versions()} on {platform.system()}, "
        f"{os.cpu_count()} cores, in {rounds} rounds."
    )


def _versions() -> str:
    """Return the versions of the installed peers. Rendering stored figures needs none."""
    peers = ("torch", "safetensors", "cloudpickle")
    found = (next(distributions(name=name), None) for name in peers)
    return ", ".join(f"{each.name} {each.version}" for each in found if each is not None)


def goals_table(rows: Sequence[Measured]) -> str:
    """Return the table of goals and outcomes. A title is shown only once."""
    lines = [
        "| work | quantity | goal | measured | single rounds | met |",
        "|---|---|---|---:|---:|---|",
    ]
    for row in rows:
        title = row.title
        for outcome in row.outcomes:
            cells = (title, outcome.goal.label, _goal_text(outcome.goal), *_cells(outcome))
            lines.append(f"| {' | '.join(cells)} |")
            title = ""
    return "\n".join(lines)


def _cells(outcome: Outcome) -> Sequence[str]:
    """Return the cells for the outcome of a goal."""
    if outcome.ratio is None:
        return ["", "", outcome.missing]
    goal = outcome.goal
    lowest, highest = _value_text(goal, outcome.lowest), _value_text(goal, outcome.highest)
    if goal.at_least is None:
        lowest, highest = highest, lowest
    verdict = "yes" if outcome.is_met else "**no**"
    return [_value_text(goal, outcome.ratio), f"{lowest} to {highest}", verdict]


def _goal_text(goal: Goal) -> str:
    if isinstance(goal.theirs, Absolute):
        return f"under {shown_quantity(goal.theirs.limit, goal.theirs.unit)}"
    name = goal.theirs.subject
    if goal.theirs.subject == goal.ours.subject:
        name = goal.theirs.metric
    if goal.at_least is not None:
        return f"≥ {shown_ratio(goal.at_least)} faster than {name}"
    return f"≤ {shown_ratio(1 / goal.bound)} of {name}"


def _value_text(goal: Goal, ratio: float) -> str:
    """Format a ratio of theirs to ours in the form of the goal."""
    if isinstance(goal.theirs, Absolute):
        return shown_quantity(goal.theirs.limit / ratio, goal.theirs.unit)
    return shown_ratio(ratio if goal.at_least is not None else 1 / ratio)


def _figures(row: Measured) -> str:
    samples = row.samples
    metrics = list(dict.fromkeys(side.metric for side in samples)) or ["result"]
    subjects = list(dict.fromkeys(side.subject for side in samples))
    lines = [f"### {row.title}", ""]
    lines.append(f"| | {' | '.join(metrics)} |")
    lines.append(f"|---|{'---:|' * len(metrics)}")
    for subject in subjects:
        found = {s.metric: values for s, values in samples.items() if s.subject == subject}
        cells = [_median(found[m], m) if m in found else "" for m in metrics]
        lines.append(f"| {subject} | {' | '.join(cells)} |")
    for subject, why in row.missing.items():
        lines.append(f"| {subject} | {why} |{' |' * (len(metrics) - 1)}")
    return "\n".join(lines)


def _median(values: Sequence[float], metric: str) -> str:
    unit = "B" if "memory" in metric else "" if metric == "modules" else "s"
    median = statistics.median(values)
    if not unit or median < _SPREAD_FROM[unit]:
        return shown_quantity(max(median, 0), unit)
    spread = max(max(values) - median, median - min(values)) / median
    return f"{shown_quantity(median, unit)} ± {spread:.0%}"


_SPREAD_FROM = {"s": 1e-6, "B": 1e6}
"""Smallest median for which the spread of rounds is meaningful."""


def shown_quantity(value: float, unit: str) -> str:
    """Format seconds, bytes, or a count."""
    if not unit:
        return f"{value:,.0f}"
    if unit == "B":
        return f"{value / 1e6:,.1f} MB"
    for factor, name in ((1, "s"), (1e3, "ms")):
        if value * factor >= 1:
            return f"{_three_digits(value * factor)} {name}"
    return f"{_three_digits(value * 1e6)} µs"


def shown_ratio(ratio: float) -> str:
    """Format a ratio: ``753x``."""
    return f"{_three_digits(ratio)}x"


def _three_digits(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


@dataclass(frozen=True)
class Highlight:
    """A line of the table in the README.

    Attributes:
        row: Name of the measured row.
        label: Text of the line.
        metric: Measured quantity.
        subjects: Subjects for modpack, torch.package, and torch.save or torch.load. Empty if there
            is none.
    """

    row: str
    label: str
    metric: str
    subjects: tuple[str, str, str]


_LOADED = ("modpack", "torch.package", "torch.load(mmap=True)")
_SAVED = ("modpack", "torch.package", "torch.save")
_LATER = ("modpack, later imports", "torch.package", "")
_WARM = ("modpack, warm scan cache", "torch.package", "")
HIGHLIGHTS = (
    Highlight("load-one", "load a model of one 2 GiB tensor", "load only", _LOADED),
    Highlight("load-one", "load and read this model", "load and read", _LOADED),
    Highlight("load-20000", "load and read 20,000 tensors of 50 KB", "load and read", _LOADED),
    Highlight("save-400", "save 400 tensors, 2 GiB", "saving", _SAVED),
    Highlight("save-20000", "save 20,000 tensors of 50 KB", "saving", _SAVED),
    Highlight("save-objects", "save 200,000 small objects", "saving", _SAVED),
    Highlight("walk-sympy", "export sympy, per module", "per module", (*_SAVED[:2], "")),
    Highlight("walk-sympy", "export sympy, per module, warm scan cache", "per module", _WARM),
    Highlight("import-3000", "import 3,000 packaged modules, cached bytecode", "importing", _LATER),
    Highlight("round-trip", "save and load 1 MB, after the first time", "later", _SAVED),
)


def highlights_table(rows: Sequence[Measured], rounds: int) -> str:
    """Return the table of the README, and the environment of the measurement.

    Args:
        rows: Measurements.
        rounds: Number of rounds.
    """
    found = {row.name: row for row in rows}
    lines = [
        "| | modpack | torch.package | torch.save, torch.load(mmap=True) |",
        "|---|---:|---:|---:|",
    ]
    lines += [_line(each, found[each.row]) for each in HIGHLIGHTS if each.row in found]
    return "\n".join([measured_with(rounds), "", *lines])


def _line(highlight: Highlight, row: Measured) -> str:
    cells = [_cell(row.samples.get(Side(each, highlight.metric))) for each in highlight.subjects]
    return f"| {highlight.label} | {' | '.join(cells)} |"


def _cell(values: Sequence[float] | None) -> str:
    return shown_quantity(statistics.median(values), "s") if values else ""


_READING = """\
`modpack.save` flushes the file to disk, stores digests of all records, and looks up the installed
libraries. The other tools do not, and are faster for small files. The self-test is not part of
these rows; the first one in a process adds about the time of `import torch`.

Each case runs in a new process that has imported its tool, after a warm-up with a tiny object. In
each round, every tool runs once, and each round starts with a different tool. Files to load are in
the page cache. "load and read" is loading, followed by the sum of every tensor.

<details markdown>
<summary>Details of the method</summary>

- Rows that save tensors have five rounds, because disk speed varies.
- Rows whose titles name the load test include the self-test. Those of transformers, diffusers, and
  timm are measured if these libraries are installed.
- safetensors stores only tensors. The benchmark creates the model on the meta device and assigns
  the tensors.
- cloudpickle refers to the model's class by name and does not save its source.
- torch.package runs with a higher recursion limit, because it cannot package sympy with the
  default.
- Private memory is the sum of `Private_Dirty` and `Private_Clean` in `/proc/self/smaps`, without
  clean pages of libraries, which other processes share.

</details>"""

_GOALS = """\
"measured" compares the medians of all rounds; "single rounds" is the range of the ratios of
individual rounds."""

_FIGURES = "Medians of all rounds, with the largest deviation of a single round."


def _folded(summary: str, *parts: str) -> str:
    """Return parts of the page below a line that unfolds them, on the site and on GitHub."""
    body = "\n\n".join(parts)
    return f"<details markdown>\n<summary>{summary}</summary>\n\n{body}\n\n</details>"
