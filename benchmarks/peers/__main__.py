"""Compare time and memory of modpack with other tools, and check goals.

``python benchmarks/peers`` measures everything, prints the page, and shows progress on stderr.
``--runs`` repeats the measurement. ``--write`` writes the page and its plot to the docs, and some
figures to the README. ``--only`` measures some rows. ``--fast`` divides all sizes by 20 to test the
benchmark, and writes nothing. ``--keep`` stores the measurements in a file after each run, and
``--render`` renders the page from such files. The exit status is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from figures import Goal, Measured, Outcome, Side, join
from measuring import Row, measure, read_back, remove_large, to_json
from page import goals_table, highlights_table, rendered, replaced, shown_ratio
from plot import Bar, drawn
from rates import parse_at_once
from rows import rows

ROOT = Path(__file__).parents[2]
README, DOCS = ROOT / "README.md", ROOT / "docs"
PAGE = DOCS / "reference" / "performance.md"
PLOT = DOCS / "images" / "performance.svg"
FAST_SHARE = 20
NEEDED = ("safetensors", "cloudpickle", "sympy")


def main() -> int:
    """Measure, print, and write."""
    options = _options()
    share = FAST_SHARE if options.fast else 1
    wanted = [row for row in rows(share) if not options.only or row.name in options.only]
    if options.render:
        results, rounds = _read(options.render, wanted)
    else:
        results, rounds = _measured(wanted, options), options.rounds
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    print(rendered(results, rounds, share), end="")
    if options.write:
        PLOT.write_text(drawn(_bars(results), "modpack and other tools"), encoding="utf-8")
        page = rendered(results, rounds, plot=f"../images/{PLOT.name}")
        PAGE.write_text(page, encoding="utf-8")
        table = highlights_table(results, rounds)
        README.write_text(replaced(README, "make bench", table), encoding="utf-8")
    missed = [
        f"  {row.title}: {_quantity(row, outcome.goal)}"
        for row, outcome in _outcomes(results)
        if not outcome.is_met
    ]
    if missed:
        _log("\n".join(["missed goals:", *missed]))
    return int(bool(missed))


def _outcomes(results: Sequence[Measured]) -> list[tuple[Measured, Outcome]]:
    return [(row, outcome) for row in results for outcome in row.outcomes]


def _read(files: Sequence[Path], wanted: Sequence[Row]) -> tuple[list[Measured], int]:
    found = [read_back(file, wanted) for file in files]
    return _all_runs([measured for measured, _ in found]), min(rounds for _, rounds in found)


def _measured(wanted: Sequence[Row], options: argparse.Namespace) -> list[Measured]:
    _require_peers()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # remove gigabytes of files
    runs: list[list[Measured]] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for number in range(options.runs):
            _log(f"run {number + 1} of {options.runs}")
            own = Path(folder, str(number))
            own.mkdir()
            runs.append([_row(row, options.rounds, own) for row in wanted])
            if options.keep:
                options.keep.write_text(to_json(_all_runs(runs), options.rounds))
    return _all_runs(runs)


def _row(row: Row, rounds: int, folder: Path) -> Measured:
    """Measure a row in its own folder."""
    own, started = folder / row.name, time.monotonic()
    own.mkdir()
    try:
        pace = parse_at_once()
        result = replace(measure(row, rounds, own, _log), paces=(pace,))
    finally:
        remove_large(own)
    _log(goals_table([result]))  # visible even if the rest is interrupted
    _log(f"{row.name} took {time.monotonic() - started:.0f} s")
    return result


def _all_runs(runs: Sequence[Sequence[Measured]]) -> list[Measured]:
    return [join(row_runs) for row_runs in zip(*runs, strict=True)]


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _bars(results: Sequence[Measured]) -> list[Bar]:
    return [
        Bar(
            _label(row, outcome.goal),
            outcome.ratio,
            outcome.lowest,
            outcome.highest,
            outcome.goal.bound,
            shown_ratio(outcome.ratio),
            outcome.is_met,
        )
        for row, outcome in _outcomes(results)
        if outcome.ratio is not None
    ]


def _label(row: Measured, goal: Goal) -> str:
    return f"{row.name}: {_quantity(row, goal)}"


def _quantity(row: Measured, goal: Goal) -> str:
    """Return the quantity, and the peer if there are several."""
    same_label = [other for other in row.goals if other.label == goal.label]
    peer = f"; {goal.theirs.subject}" if isinstance(goal.theirs, Side) and same_label[1:] else ""
    return f"{goal.label}{peer}"


def _require_peers() -> None:
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        raise SystemExit(f"not installed: {', '.join(absent)}. Run: pip install -e '.[bench]'")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python benchmarks/peers", description=__doc__)
    names = [row.name for row in rows()]
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=names, help=", ".join(names))
    parser.add_argument("--fast", action="store_true", help=f"sizes divided by {FAST_SHARE}")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} and {PLOT.name}")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds per run")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="number of runs")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="store the measurements as JSON")
    parser.add_argument("--render", type=Path, nargs="+", metavar="FILE", help="render these files")
    parser.add_argument("--folder", type=Path, help="folder for up to 20 GB of files")
    options = parser.parse_args()
    if options.rounds < 3:
        parser.error("--rounds must be at least 3")
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    if options.folder and not options.folder.is_dir():
        parser.error(f"--folder: no such folder: {options.folder}")
    for file in options.render or ():
        if not file.is_file():
            parser.error(f"--render: no such file: {file}")
    if options.write and (options.fast or options.only):
        parser.error("--write cannot be combined with --fast or --only")
    return options


if __name__ == "__main__":
    sys.exit(main())
