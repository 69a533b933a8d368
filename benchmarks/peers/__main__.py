"""modpack beside its peers: times, memory, and what is wanted of them.

``python benchmarks/peers`` measures everything, prints the page, and says on the standard error
what it is doing. ``--write`` writes the page and its plot to the docs; ``--only`` measures some of
the work; ``--fast`` measures a twentieth of it, to see that the benchmark itself works, and writes
nothing. The exit status is 1 if a goal is not met.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from measuring import Row, measured
from page import Measured, goals_table, rendered, shown_ratio
from plot import Bar, drawn
from rows import rows

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "reference" / "performance.md"
PLOT = DOCS / "images" / "performance.svg"
FAST_SHARE = 20
NEEDED = ("safetensors", "cloudpickle", "sympy")


def main() -> int:
    """Measure, print, write."""
    options = _options()
    _require_peers()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or gigabytes would stay behind
    share = FAST_SHARE if options.fast else 1
    wanted = [row for row in rows(share) if not options.only or row.name in options.only]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        results = [_measured(row, options.rounds, Path(folder)) for row in wanted]
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    print(rendered(results, options.rounds, share), end="")
    if options.write:
        PLOT.write_text(drawn(_bars(results), "How modpack compares"), encoding="utf-8")
        page = rendered(results, options.rounds, plot=f"../images/{PLOT.name}")
        PAGE.write_text(page, encoding="utf-8")
    return int(not all(outcome.is_met for row in results for outcome in row.outcomes))


def _measured(row: Row, rounds: int, folder: Path) -> Measured:
    """Measure a row in a folder of its own, which is removed: files are large."""
    own = folder / row.name
    own.mkdir()
    try:
        result = measured(row, rounds, own, _tell)
    finally:
        shutil.rmtree(own)
    _tell(goals_table([result]))  # who interrupts the rest has this one
    return result


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _bars(results: Sequence[Measured]) -> list[Bar]:
    return [
        Bar(
            f"{row.name}: {outcome.goal.what}",
            outcome.ratio,
            outcome.lowest,
            outcome.highest,
            outcome.goal.bound,
            shown_ratio(outcome.ratio),
        )
        for row in results
        for outcome in row.outcomes
        if outcome.ratio is not None
    ]


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
    parser.add_argument("--folder", type=Path, help="where 20 GB may be written for a while")
    options = parser.parse_args()
    if options.rounds < 3:
        parser.error("--rounds must be at least 3: medians of fewer mean nothing")
    if options.write and (options.fast or options.only):
        parser.error("--write wants all of it, in the real sizes")
    return options


if __name__ == "__main__":
    sys.exit(main())
