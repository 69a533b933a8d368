"""Compare time and memory of modpack with other tools, and check goals.

``python benchmarks/peers`` measures everything, prints the page, and shows progress on stderr.
``--write`` writes its part of the page, and figures to the README. ``--only`` measures some rows.
``--fast`` divides all sizes by 20 to test the benchmark, and writes nothing. ``--keep`` stores the
measurements in a file, and ``--render`` renders the page from such a file. ``--profile`` profiles
modpack's part of the rows instead. The exit status is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from figures import Measured
from measuring import (
    Failed,
    Row,
    figures_of,
    measure,
    prepare,
    read_back,
    remove_large,
    to_json,
)
from page import goals_table, highlights_table, rendered
from rows import rows

sys.path.append(str(Path(__file__).parents[2] / "tools"))

from marks import replaced

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "reference" / "performance.md"
FAST_SHARE = 20
NEEDED = ("safetensors", "cloudpickle", "sympy")


def main() -> int:
    """Measure, print, and write."""
    options = _options()
    share = FAST_SHARE if options.fast else 1
    wanted = [row for row in rows(share) if not options.only or row.name in options.only]
    if options.profile:
        _profile(wanted, options)
        return 0
    if options.render:
        results, rounds = read_back(options.render, wanted)
    else:
        results, rounds = _measured(wanted, options), options.rounds
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    page = rendered(results, rounds, share)
    print(page, end="")
    if options.write:
        PAGE.write_text(replaced(PAGE, "make bench", page), encoding="utf-8")
        table = highlights_table(results, rounds)
        README.write_text(replaced(README, "make bench", table), encoding="utf-8")
    missed = [row.title for row in results for outcome in row.outcomes if not outcome.is_met]
    if missed:
        _log("\n".join(["missed goals:", *dict.fromkeys(missed)]))
    return int(bool(missed))


def _measured(wanted: Sequence[Row], options: argparse.Namespace) -> list[Measured]:
    _require_peers()
    results: list[Measured] = []
    with _folders(wanted, options) as folders:
        for row, folder in folders:
            started = time.monotonic()
            results.append(measure(row, options.rounds, folder, _log))
            _log(goals_table(results[-1:]))  # visible even if the rest is interrupted
            _log(f"{row.name} took {time.monotonic() - started:.0f} s")
            if options.keep:
                options.keep.write_text(to_json(results, options.rounds))
    return results


def _profile(wanted: Sequence[Row], options: argparse.Namespace) -> None:
    """Store a profile of each of modpack's subjects with a goal, for ``python -m pstats``."""
    with _folders(wanted, options) as folders:
        for row, folder in folders:
            prepare(row, folder)
            for number, subject in enumerate(dict.fromkeys(g.ours.subject for g in row.goals)):
                file = options.profile.resolve() / f"{row.name}-{number}.profile"
                try:
                    figures_of(row.subjects[subject], folder, file)
                except Failed as error:
                    raise SystemExit(f"{row.name}: {subject}: {error}") from error
                _log(f"{file}: {row.title}, {subject}")


@contextlib.contextmanager
def _folders(
    wanted: Sequence[Row], options: argparse.Namespace
) -> Iterator[Iterator[tuple[Row, Path]]]:
    """Yield the rows, each with a folder whose large files are removed afterwards."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # remove gigabytes of files

    def each(parent: Path) -> Iterator[tuple[Row, Path]]:
        for row in wanted:
            folder = parent / row.name
            folder.mkdir()
            yield row, folder
            remove_large(folder)

    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        yield each(Path(folder))


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _require_peers() -> None:
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        raise SystemExit(f"not installed: {', '.join(absent)}. Run: pip install -e '.[bench]'")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python benchmarks/peers", description=__doc__)
    names = [row.name for row in rows()]
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=names, help=", ".join(names))
    parser.add_argument("--fast", action="store_true", help=f"sizes divided by {FAST_SHARE}")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} and the README")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="number of rounds")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="store the measurements as JSON")
    parser.add_argument("--render", type=Path, metavar="FILE", help="render this file")
    parser.add_argument("--profile", type=Path, metavar="FOLDER", help="folder for profiles")
    parser.add_argument("--folder", type=Path, help="folder for up to 20 GB of files")
    options = parser.parse_args()
    if options.rounds < 3:
        parser.error("--rounds must be at least 3")
    for name in ("folder", "profile"):
        folder = getattr(options, name)
        if folder and not folder.is_dir():
            parser.error(f"--{name}: no such folder: {folder}")
    if options.render and not options.render.is_file():
        parser.error(f"--render: no such file: {options.render}")
    if options.write and (options.fast or options.only):
        parser.error("--write cannot be combined with --fast or --only")
    return options


if __name__ == "__main__":
    sys.exit(main())
