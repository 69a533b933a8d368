"""The page with the tables."""

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
    """The page, in Markdown.

    Args:
        rows: what was measured.
        rounds: how often in each run.
        share: the sizes are those of the goals divided by this.
        plot: the plot's path, from the page.
    """
    parts = [_HEAD, made(rows, rounds, share)]
    if plot:
        parts.append(f"![Ratios, and the goals for them]({plot})")
    parts += [goals_table(rows), *_evenness(rows), _LIMITS, _limits_table(rows)]
    parts += [_FIGURES, *map(_figures, rows)]
    return "\n\n".join(parts) + "\n"


def made(rows: Sequence[Measured], rounds: int, share: int = 1) -> str:
    """Where and how it was measured, and how many goals are met."""
    outcomes = [outcome for row in rows for outcome in row.outcomes]
    noisy = sum(outcome.is_noisy for outcome in outcomes)
    met = sum(outcome.is_met for outcome in outcomes)
    runs = max((len(row.runs) for row in rows), default=1)
    often = f"{rounds} rounds" if runs == 1 else f"{runs} runs of {rounds} rounds"
    text = (
        f"Made with Python {platform.python_version()}, {_versions()} on {platform.system()}, "
        f"{os.cpu_count()} cores, in {often}. {met} of {len(outcomes)} goals are met. "
        f"{noisy or 'None'} of the verdicts {'is' if noisy == 1 else 'are'} noisy."
    )
    if share != 1:
        text += f"\n\n**Not the real sizes: all are divided by {share}. This is a smoke test.**"
    return text


def _versions() -> str:
    """Those of the peers that are installed; a page can be made of figures without them."""
    peers = ("torch", "safetensors", "cloudpickle")
    found = (next(distributions(name=name), None) for name in peers)
    return ", ".join(f"{each.name} {each.version}" for each in found if each is not None)


def goals_table(rows: Sequence[Measured]) -> str:
    """What is wanted, and what came of it."""
    head = (
        "| work | quantity | goal | measured | each run | single rounds | met |",
        "|---|---|---|---:|---:|---:|---|",
    )
    return "\n".join([*head, *_lines(rows, _outcome)])


def _evenness(rows: Sequence[Measured]) -> list[str]:
    """How long the same took before each row, in each run; nothing if nobody looked."""
    runs = list(zip(*(row.paces for row in rows), strict=True))
    if not runs:
        return []
    cores = list(runs[0][0])
    lines = [f"| run | {' | '.join(cores)} |", f"|---|{'---:|' * len(cores)}"]
    for number, paces in enumerate(runs, 1):
        cells = (_median_and_range([pace[each] for pace in paces]) for each in cores)
        lines.append(f"| {number} | {' | '.join(cells)} |")
    return [_EVENNESS, "\n".join(lines)]


def _median_and_range(values: Sequence[float]) -> str:
    median, *ends = (shown_quantity(f(values), "s") for f in (statistics.median, min, max))
    return f"{median} ({' to '.join(ends)})"


def _limits_table(rows: Sequence[Measured]) -> str:
    head = (
        "| work | quantity | goal | measured | met | at the limit | limit |",
        "|---|---|---|---:|---|---:|---|",
    )
    return "\n".join([*head, *_lines(rows, _limits)])


def _lines(rows: Sequence[Measured], told: Callable[[Outcome], Sequence[str]]) -> Iterator[str]:
    """One line for each outcome that there is something to tell of; a title stands only once."""
    for row in rows:
        title = row.title
        for outcome in row.outcomes:
            cells = told(outcome)
            if cells:
                named = (title, outcome.goal.what, _wanted(outcome.goal))
                yield f"| {' | '.join([*named, *cells])} |"
                title = ""


def _outcome(outcome: Outcome) -> Sequence[str]:
    """What came of a goal."""
    if outcome.ratio is None:
        return ["", "", "", outcome.missing]
    goal = outcome.goal
    lowest, highest = _as_wanted(goal, outcome.lowest), _as_wanted(goal, outcome.highest)
    if goal.at_least is None:
        lowest, highest = highest, lowest
    in_runs = ", ".join(_as_wanted(goal, ratio) for ratio in outcome.in_runs)
    verdict = _verdict(outcome) + (", noisy" if outcome.is_noisy else "")
    return [_as_wanted(goal, outcome.ratio), in_runs, f"{lowest} to {highest}", verdict]


def _limits(outcome: Outcome) -> Sequence[str]:
    """What would come of a goal at its limits; nothing if it has none, or was not measured."""
    goal = outcome.goal
    if outcome.ratio is None or not outcome.at_limits:
        return ()
    at_limits = (_as_wanted(goal, ratio) for _, ratio in outcome.at_limits)
    told = (limit.subject.removeprefix("limit: ") for limit, _ in outcome.at_limits)
    each = (_as_wanted(goal, outcome.ratio), _verdict(outcome))
    return [*each, "<br>".join(at_limits), "<br>".join(told)]


def _verdict(outcome: Outcome) -> str:
    if outcome.is_met:
        return "yes"
    runs = len(outcome.in_runs)
    return f"**in {outcome.times_met} of {runs} runs**" if outcome.times_met else "**no**"


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
    if not unit or median < _MEANS_SOMETHING[unit]:
        return shown_quantity(max(median, 0), unit)
    spread = spread_of(median, min(values), max(values))
    return f"{shown_quantity(median, unit)} ± {spread - 1:.0%}"


_MEANS_SOMETHING = {"s": 1e-6, "B": 1e6}
"""Below this, there is nothing to say about how far rounds are from each other."""


def shown_quantity(value: float, unit: str) -> str:
    """Seconds or bytes, for people; or a count."""
    if not unit:
        return f"{value:,.0f}"
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


@dataclass(frozen=True)
class Highlight:
    """A line of the table.

    Attributes:
        row: the row that was measured.
        what: in words.
        metric: the quantity of it.
        subjects: the subjects for modpack, torch.package, and torch.save and torch.load; empty if
            there is nothing to compare with.
    """

    row: str
    what: str
    metric: str
    subjects: tuple[str, str, str]


_LOADED = ("modpack", "torch.package", "torch.load(mmap=True)")
_SAVED = ("modpack", "torch.package", "torch.save")
_LATER = ("modpack, from the second", "torch.package", "")
_WARM = ("modpack, warm scan cache", "torch.package", "")
HIGHLIGHTS = (
    Highlight("load-one", "load a model of one 2 GiB tensor", "to the model", _LOADED),
    Highlight("load-one", "load it, and read all of it", "with a pass", _LOADED),
    Highlight("load-20000", "load 20,000 tensors of 50 KB, and read them", "with a pass", _LOADED),
    Highlight("save-400", "save 400 tensors, 2 GiB", "saving", _SAVED),
    Highlight("save-20000", "save 20,000 tensors of 50 KB", "saving", _SAVED),
    Highlight("save-objects", "save 200,000 small objects", "saving", _SAVED),
    Highlight("walk-sympy", "export of sympy, for each module", "per module", (*_SAVED[:2], "")),
    Highlight("walk-sympy", "the same, scanned before", "per module", _WARM),
    Highlight("import-3000", "import 3,000 packaged modules again", "importing", _LATER),
    Highlight("round-trip", "save and load 1 MB, not for the first time", "later", _SAVED),
)


def highlights_table(rows: Sequence[Measured], rounds: int) -> str:
    """The table, and how it was made.

    Args:
        rows: what was measured.
        rounds: how often in each run.
    """
    found = {row.name: row for row in rows}
    lines = [
        "| | modpack | torch.package | torch.save, torch.load(mmap=True) |",
        "|---|---:|---:|---:|",
    ]
    lines += [_line(each, found[each.row]) for each in HIGHLIGHTS if each.row in found]
    return "\n".join([made(rows, rounds), "", *lines])


def _line(highlight: Highlight, row: Measured) -> str:
    samples = all_rounds(row.runs)
    cells = [_cell(samples.get(Side(each, highlight.metric))) for each in highlight.subjects]
    return f"| {highlight.what} | {' | '.join(cells)} |"


def _cell(values: Sequence[float] | None) -> str:
    return shown_quantity(statistics.median(values), "s") if values else ""


END = "<!-- Until here. -->"


def begin(command: str) -> str:
    """The mark before what a command writes."""
    return f"<!-- Made by `{command}`, down to the next mark. Do not edit. -->"


def replaced(file: Path, command: str, inside: str) -> str:
    """A page with something else between its marks.

    Args:
        file: the page; it is not written.
        command: what writes that part of it.
        inside: the new part.
    """
    before, mark, rest = file.read_text(encoding="utf-8").partition(begin(command))
    _, end, after = rest.partition(END)
    if not (mark and end):
        raise SystemExit(f"{file.name} lacks its marks: {begin(command)} and {END}")
    return f"{before}{mark}\n\n{inside.strip()}\n\n{end}{after}"


_HEAD = """\
# Performance

<!-- Made by `make bench`. Do not edit. -->

modpack beside torch.package, `torch.save`, safetensors and cloudpickle. Each case is a process of
its own. Before the clock starts, it has imported its tool; where objects are saved or loaded, or
packages opened, it has done so with something tiny, for what is imported only then, and the figures
tell how long that took. In every round each subject has its turn, and each round begins with
another one; where tensors are saved, there are five, for the disk is fast one minute and slow the
next. A ratio is that of the medians of a run's rounds; "measured" is the middle one of the runs,
and a goal is met if every run keeps it. "single rounds" gives the smallest and the largest ratio
that one round alone would have given. A verdict is *noisy* where these are farther from what was
measured than that is from the goal.

What is loaded is in the page cache, where reading it anew has put it. `torch.save` and the others
leave what they write in the page cache; a save of modpack ends when the disk has it, and includes
a sha256 and a crc32 of everything. "with a pass" is loading followed by the sum of every tensor.
safetensors holds tensors only: there, the model is made on the meta device and takes them over.
cloudpickle names the model's class instead of taking it along. torch.package gets a higher
recursion limit than usual, without which it cannot take sympy along. Private memory is that of the
whole process: the sum of `Private_Dirty` and `Private_Clean` in `/proc/self/smaps`, without what
is clean of libraries, which is shared as soon as another process runs them."""

_EVENNESS = """\
## How even the machine was

Before each piece of work, a quarter of a MB of source is parsed (`ast.parse`) by one process, and
then by one for each core at once. Where that takes longer than in another run, or takes different
times within one, something else was busy, and what was measured then says less."""

_LIMITS = """\
## Limits

What the goals would come out as for something that does only what cannot be avoided. It is
measured in the same rounds, and is in `benchmarks/peers`. Those *by hand* keep the promises of a
package, but know no models other than those measured here: between them and modpack lies what it
takes to save and load any other. torch.package *compared and synced* is not by hand. The rest have
no archive, check nothing, find no dependencies, and nobody could use them. A goal that is missed at
a limit cannot be met by whoever does as much. Where the disk or the kernel takes nearly all of the
time, modpack comes out beside its limit, and sometimes before it: that is how uneven these are.

- *the same promises, by hand*: to load is to compare each record but the tensors with its sha256
  and crc32, the zip's headers with each other, and the environment with the recorded one; the code
  is the package's, compiled before, in modules of its own. To save is to find that code and its
  imports, to write all records that modpack writes, with their digests, beside the target, to sync
  that and to rename it. What these models do not have is not looked for: hooks, secrets, folders of
  code, metadata of distributions (`handloaded.py`, `handsaved.py`).
- *by hand, the file's end known*: the same, but records that were compared before are not compared
  again: the cache has what they hold, by a sha256 of the end of the file, where all of them are.
- *mapped, made by hand*: a storage for each tensor over one mapped file, and Parameters in a model
  whose class is imported already; nothing is unpickled.
- *hashed, written and synced*: the tensors' bytes go to a new file, while all cores compute a
  sha256 and a crc32 of each, and the disk takes what was written; it ends when the disk has all.
- *the C pickler*: `pickle.dump`, which asks nobody about the objects that it meets.
- *read and parsed, on one core*: `ast.parse` of each source. Several cores can do better.
- *read and hashed*: each source, and nothing else.
- *one file of sources*, *one file of code*: imported from memory by a finder of ten lines, while
  Python does not search for garbage. All cores compile sources; code is marshalled, as in a `.pyc`.
- *torch.package, compared and synced*: torch.package saves and loads, and two of modpack's promises
  are kept for it: each record has a sha256, made on another thread, which is compared when it is
  read, the tensors apart; the file is written beside the target, and takes its place when the disk
  has it (`durable.py`).
- *1 MB written, synced, mapped*: a file beside the target, which takes its place when the disk has
  it, as a save that leaves a whole file behind at each moment must.
- *Python, click and rich*: an interpreter that imports what the command line is made of."""

_FIGURES = """\
## Figures

Medians, and how far the farthest round is from them."""
