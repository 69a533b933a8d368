"""The performance page, and the generated parts of other pages."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from figures import Absolute, Goal, Measured, Outcome, Side, all_rounds, spread_of


def rendered(rows: Sequence[Measured], rounds: int, share: int = 1, plot: str = "") -> str:
    """Return the page as Markdown.

    Args:
        rows: Measurements.
        rounds: Number of rounds in each run.
        share: Divisor of all sizes.
        plot: Path of the plot, relative to the page.
    """
    parts = [_HEAD, measured_with(rows, rounds, share)]
    if plot:
        parts.append(f"![Ratios and goals]({plot})")
    parts += [goals_table(rows), *_noise(rows), _LIMITS, _limits_table(rows)]
    parts += [_FIGURES, *map(_figures, rows)]
    return "\n\n".join(parts) + "\n"


def measured_with(rows: Sequence[Measured], rounds: int, share: int = 1) -> str:
    """Describe the environment, and count the goals that are met."""
    outcomes = [outcome for row in rows for outcome in row.outcomes]
    noisy = sum(outcome.is_noisy for outcome in outcomes)
    met = sum(outcome.is_met for outcome in outcomes)
    runs = max((len(row.runs) for row in rows), default=1)
    repeats = f"{rounds} rounds" if runs == 1 else f"{runs} runs of {rounds} rounds"
    text = (
        f"Measured with Python {platform.python_version()}, {_versions()} on {platform.system()}, "
        f"{os.cpu_count()} cores, in {repeats}. modpack meets {met} of {len(outcomes)} performance "
        "goals."
    )
    if noisy:
        verdicts = "verdict is" if noisy == 1 else "verdicts are"
        text += (
            f" {noisy} {verdicts} noisy: a single round differs from the result by more than the "
            "goal does."
        )
    if share != 1:
        text += f"\n\n**Smoke test: all sizes are divided by {share}.**"
    return text


def _versions() -> str:
    """Return the versions of the installed peers. Rendering stored figures needs none."""
    peers = ("torch", "safetensors", "cloudpickle")
    found = (next(distributions(name=name), None) for name in peers)
    return ", ".join(f"{each.name} {each.version}" for each in found if each is not None)


def goals_table(rows: Sequence[Measured]) -> str:
    """Return the table of goals and outcomes."""
    head = (
        "| work | quantity | goal | measured | each run | single rounds | met |",
        "|---|---|---|---:|---:|---:|---|",
    )
    return "\n".join([*head, *_lines(rows, _outcome)])


def _noise(rows: Sequence[Measured]) -> list[str]:
    """Return the section with the times of the reference work, if they were measured."""
    runs = list(zip(*(row.paces for row in rows), strict=True))
    if not runs:
        return []
    cores = list(runs[0][0])
    lines = [f"| run | {' | '.join(cores)} |", f"|---|{'---:|' * len(cores)}"]
    for number, paces in enumerate(runs, 1):
        cells = (_median_and_range([pace[each] for pace in paces]) for each in cores)
        lines.append(f"| {number} | {' | '.join(cells)} |")
    return [_NOISE, "\n".join(lines)]


def _median_and_range(values: Sequence[float]) -> str:
    median, *ends = (shown_quantity(f(values), "s") for f in (statistics.median, min, max))
    return f"{median} ({' to '.join(ends)})"


def _limits_table(rows: Sequence[Measured]) -> str:
    head = (
        "| work | quantity | goal | measured | met | at the limit | limit |",
        "|---|---|---|---:|---|---:|---|",
    )
    return "\n".join([*head, *_lines(rows, _limits)])


def _lines(rows: Sequence[Measured], cells_of: Callable[[Outcome], Sequence[str]]) -> Iterator[str]:
    """Yield a line for each outcome with cells. A title is shown only once."""
    for row in rows:
        title = row.title
        for outcome in row.outcomes:
            cells = cells_of(outcome)
            if cells:
                named = (title, outcome.goal.label, _goal_text(outcome.goal))
                yield f"| {' | '.join([*named, *cells])} |"
                title = ""


def _outcome(outcome: Outcome) -> Sequence[str]:
    """Return the cells for the outcome of a goal."""
    if outcome.ratio is None:
        return ["", "", "", outcome.missing]
    goal = outcome.goal
    lowest, highest = _value_text(goal, outcome.lowest), _value_text(goal, outcome.highest)
    if goal.at_least is None:
        lowest, highest = highest, lowest
    in_runs = ", ".join(_value_text(goal, ratio) for ratio in outcome.in_runs)
    verdict = _verdict(outcome) + (", noisy" if outcome.is_noisy else "")
    return [_value_text(goal, outcome.ratio), in_runs, f"{lowest} to {highest}", verdict]


def _limits(outcome: Outcome) -> Sequence[str]:
    """Return the cells for a goal at its limits, or none without measured limits."""
    goal = outcome.goal
    if outcome.ratio is None or not outcome.at_limits:
        return ()
    at_limits = (_value_text(goal, ratio) for _, ratio in outcome.at_limits)
    names = (limit.subject.removeprefix("limit: ") for limit, _ in outcome.at_limits)
    each = (_value_text(goal, outcome.ratio), _verdict(outcome))
    return [*each, "<br>".join(at_limits), "<br>".join(names)]


def _verdict(outcome: Outcome) -> str:
    if outcome.is_met:
        return "yes"
    runs = len(outcome.in_runs)
    return f"**in {outcome.times_met} of {runs} runs**" if outcome.times_met else "**no**"


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
    samples = all_rounds(row.runs)
    metrics = list(dict.fromkeys(side.metric for side in samples))
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
    spread = spread_of(median, min(values), max(values))
    return f"{shown_quantity(median, unit)} ± {spread - 1:.0%}"


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
        rounds: Number of rounds in each run.
    """
    found = {row.name: row for row in rows}
    lines = [
        "| | modpack | torch.package | torch.save, torch.load(mmap=True) |",
        "|---|---:|---:|---:|",
    ]
    lines += [_line(each, found[each.row]) for each in HIGHLIGHTS if each.row in found]
    return "\n".join([measured_with(rows, rounds), "", *lines])


def _line(highlight: Highlight, row: Measured) -> str:
    samples = all_rounds(row.runs)
    cells = [_cell(samples.get(Side(each, highlight.metric))) for each in highlight.subjects]
    return f"| {highlight.label} | {' | '.join(cells)} |"


def _cell(values: Sequence[float] | None) -> str:
    return shown_quantity(statistics.median(values), "s") if values else ""


END = "<!-- End of generated part. -->"


def begin(command: str) -> str:
    """Return the mark at the start of a generated part."""
    return f"<!-- Generated by `{command}`. Do not edit. -->"


def replaced(file: Path, command: str, inside: str) -> str:
    """Return a page with a new generated part between its marks.

    Args:
        file: The page, which is not written.
        command: The command that generates the part.
        inside: The new part.
    """
    before, mark, rest = file.read_text(encoding="utf-8").partition(begin(command))
    _, end, after = rest.partition(END)
    if not (mark and end):
        raise SystemExit(f"{file.name} lacks the marks {begin(command)} and {END}")
    return f"{before}{mark}\n\n{inside.strip()}\n\n{end}{after}"


_HEAD = """\
# Performance

<!-- Generated by `make bench`. Do not edit. -->

This page compares modpack with torch.package, `torch.save`, safetensors, and cloudpickle. Each case
runs in a new process that has imported its tool. A warm-up that saves, loads, or opens a tiny
object runs before the measurement, so that lazy imports are not part of it. The tables list its
time separately.

In each round, every tool runs once, and each round starts with a different tool. Rows that
save tensors have five rounds, because disk speed varies. A ratio compares the medians of a run's
rounds. "measured" is the median of all runs, and a goal is met if every run meets it. "single
rounds" is the range of ratios of individual rounds. A verdict is *noisy* if a single round
differs from the measured ratio by more than the goal does.

- Files to load are in the page cache.
- `modpack.save` returns when the disk has the file, and computes SHA-256 and CRC-32 of everything.
  The other tools leave their output in the page cache.
- `modpack.save` runs with `self_test=False`, because the other tools do not load what they saved.
  Rows whose titles name the load test include it. Those of transformers, diffusers, and timm are
  measured if these libraries are installed.
- "load and read" is loading, followed by the sum of every tensor.
- safetensors stores only tensors. The benchmark creates the model on the meta device and assigns
  the tensors.
- cloudpickle refers to the model's class by name and does not save its source.
- torch.package runs with a higher recursion limit, because it cannot package sympy with the
  default.
- Private memory is the sum of `Private_Dirty` and `Private_Clean` in `/proc/self/smaps`, without
  clean pages of libraries, which other processes share."""

_NOISE = """\
## Machine noise

Before each row, one process parses 256 KiB of source (`ast.parse`), and then one process per core
does so at the same time. If these times differ between or within runs, other work slowed the
machine down, and the results are less reliable."""

_LIMITS = """\
## Limits

The limits show the ratios of programs that do only the unavoidable work. They are measured in the
same rounds; the code is in `benchmarks/peers`. *Hand-written* limits give the guarantees of a
package, but support only the benchmark's models. *torch.package with digests and fsync* is
torch.package with two additions. The other limits have no archive, checks, or dependency analysis,
and are of no practical use.

A tool with the same guarantees cannot meet a goal that the limit misses. If the disk or the kernel
takes nearly all of the time, modpack is as fast as its limit, and sometimes faster because of
noise.

- *hand-written, same guarantees*: Loading compares all records except tensors with their SHA-256
  and CRC-32, the zip headers with each other, and the environment with the recorded one. The
  package's code was compiled before and runs in its own modules. Saving finds the code and its
  imports, writes all records of a package with digests to a temporary file, syncs the file, and
  renames it. Hooks, secrets, data files, and metadata of distributions are skipped
  (`handloaded.py`, `handsaved.py`).
- *hand-written, cached checks*: The same, but records that were compared before come from the
  cache. The key is the SHA-256 of the end of the file, which contains all of them.
- *mapped tensors only*: A storage per tensor over one mapped file, and Parameters in a model whose
  class is already imported. Nothing is unpickled.
- *hash, write, and fsync*: Writes the tensors' bytes to a new file, while all cores compute SHA-256
  and CRC-32. Ends when the disk has everything.
- *the C pickler*: `pickle.dump` without callbacks into Python.
- *read and parse, one core*: `ast.parse` of each source. Several cores can be faster.
- *read and hash*: Only reads and hashes each source.
- *all sources in one file*, *all bytecode in one file*: A minimal finder imports from memory with
  the garbage collector disabled. All cores compile sources. Bytecode is marshalled, as in a `.pyc`
  file.
- *torch.package with digests and fsync*: torch.package, plus a SHA-256 of each record, which
  another thread computes and which is compared when a record other than a tensor is read. The file
  is written under a temporary name, synced, and renamed (`durable.py`).
- *write, fsync, and map 1 MB*: Writes a temporary file, syncs it, and renames it, as every atomic
  and durable save must.
- *Python, click and rich*: An interpreter that imports the libraries of the command line."""

_FIGURES = """\
## Figures

Medians of all rounds, with the largest deviation of a single round."""
