"""modpack beside its peers: times, memory, and what is wanted of them.

``python benchmarks/peers`` measures everything, prints the page, and says on the standard error
what it is doing. ``--runs`` does that several times. ``--write`` writes the page and its plot to
the docs, and a few of the figures to the README; ``--only`` measures some of the work; ``--fast``
measures a twentieth of it, to see that the benchmark itself works, and writes nothing. ``--keep``
leaves the measurements in a file, complete after each run, and ``--made-of`` makes the page of such
files, without measuring anything. The exit status is 1 if a goal is not met.
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

from figures import Goal, Measured, Outcome, Side, joined
from measuring import Row, kept, measured, read_back, remove_large
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
    """Measure, print, write."""
    options = _options()
    share = FAST_SHARE if options.fast else 1
    wanted = [row for row in rows(share) if not options.only or row.name in options.only]
    if options.made_of:
        results, rounds = _read(options.made_of, wanted)
    else:
        results, rounds = _measured(wanted, options), options.rounds
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    print(rendered(results, rounds, share), end="")
    if options.write:
        PLOT.write_text(drawn(_bars(results), "How modpack compares"), encoding="utf-8")
        page = rendered(results, rounds, plot=f"../images/{PLOT.name}")
        PAGE.write_text(page, encoding="utf-8")
        table = highlights_table(results, rounds)
        README.write_text(replaced(README, "make bench", table), encoding="utf-8")
    missed = [_told(row, outcome.goal) for row, outcome in _outcomes(results) if not outcome.is_met]
    if missed:
        _tell("\n".join(["goals that are not met:", *missed]))
    return int(bool(missed))


def _told(row: Measured, goal: Goal) -> str:
    return f"  {row.title}: {_quantity(row, goal)}"


def _outcomes(results: Sequence[Measured]) -> list[tuple[Measured, Outcome]]:
    return [(row, outcome) for row in results for outcome in row.outcomes]


def _read(files: Sequence[Path], wanted: Sequence[Row]) -> tuple[list[Measured], int]:
    found = [read_back(file, wanted) for file in files]
    return _all_runs([measured for measured, _ in found]), min(rounds for _, rounds in found)


def _measured(wanted: Sequence[Row], options: argparse.Namespace) -> list[Measured]:
    _require_peers()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or gigabytes would stay behind
    runs: list[list[Measured]] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for number in range(options.runs):
            _tell(f"run {number + 1} of {options.runs}")
            own = Path(folder, str(number))
            own.mkdir()
            runs.append([_row(row, options.rounds, own) for row in wanted])
            if options.keep:
                options.keep.write_text(kept(_all_runs(runs), options.rounds))
    return _all_runs(runs)


def _row(row: Row, rounds: int, folder: Path) -> Measured:
    """Measure a row in a folder of its own."""
    own, started = folder / row.name, time.monotonic()
    own.mkdir()
    try:
        pace = parse_at_once()
        result = replace(measured(row, rounds, own, _tell), paces=(pace,))
    finally:
        remove_large(own)
    _tell(goals_table([result]))  # who interrupts the rest has this one
    _tell(f"{row.name} took {time.monotonic() - started:.0f} s")
    return result


def _all_runs(runs: Sequence[Sequence[Measured]]) -> list[Measured]:
    return [joined(of_row) for of_row in zip(*runs, strict=True)]


def _tell(text: str) -> None:
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
    """The quantity, and the peer if there are several."""
    alike = [other for other in row.goals if other.what == goal.what]
    peer = f"; {goal.theirs.subject}" if isinstance(goal.theirs, Side) and alike[1:] else ""
    return f"{goal.what}{peer}"


def _require_peers() -> None:
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        raise SystemExit(f"not installed: {', '.join(absent)}; pip install -e '.[bench]'")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python benchmarks/peers", description=__doc__)
    names = [row.name for row in rows()]
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=names, help=", ".join(names))
    parser.add_argument("--fast", action="store_true", help=f"sizes divided by {FAST_SHARE}")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} and {PLOT.name}")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="at least 3")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="all of it so often")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="measurements, as JSON")
    parser.add_argument("--made-of", type=Path, nargs="+", metavar="FILE", help="such files")
    parser.add_argument("--folder", type=Path, help="where 20 GB may be written for a while")
    options = parser.parse_args()
    if options.rounds < 3:
        parser.error("--rounds must be at least 3: medians of fewer mean nothing")
    if options.runs < 1:  # the page of no runs is an empty one
        parser.error("--runs must be at least 1")
    if options.folder and not options.folder.is_dir():
        parser.error(f"--folder: no such folder: {options.folder}")
    for file in options.made_of or ():
        if not file.is_file():
            parser.error(f"--made-of: no such file: {file}")
    if options.write and (options.fast or options.only):
        parser.error("--write wants all of it, in the real sizes")
    return options


if __name__ == "__main__":
    sys.exit(main())
