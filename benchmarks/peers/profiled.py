"""Where the time goes: ``python benchmarks/peers/profiled.py ROW`` profiles modpack's part of it.

Prints a table for each thing of modpack's that the row has a goal for: which room of modpack, or
which library, took which share. ``--write`` does so for all rows, and puts the tables into the
docs, between the marks. ``--keep`` leaves the profiles in a folder, for ``python -m pstats``.

A profile sees one thread, and makes calls of Python functions dearer than they are; what other
threads and processes do shows as waiting.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from marks import replaced
from measuring import Failed, Row, figures_of, prepare, remove_large
from rows import rows
from shares import read, shares_of, table

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "where-the-time-goes.md"
COMMAND = "make bench-profile"
FAST_SHARE = 20


def main() -> None:
    """Profile, print, write."""
    options = _options()
    wanted = [row for row in rows(FAST_SHARE if options.fast else 1) if _ours(row)]
    wanted = [row for row in wanted if not options.row or row.name in options.row]
    parts = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for row in wanted:
            own = Path(folder, row.name)
            own.mkdir()
            for part in _tables(row, own, options.keep):
                parts.append(part)
                print(part, flush=True)
            remove_large(own)
    if options.write:
        PAGE.write_text(replaced(PAGE, COMMAND, inside(parts)), encoding="utf-8")


def inside(parts: list[str]) -> str:
    """What stands between the marks of the page."""
    made = f"Made with Python {platform.python_version()} on {platform.system()}."
    return "\n\n".join(part.strip() for part in [made, *parts])


def _ours(row: Row) -> list[str]:
    """What of a row is modpack's, and clocked here."""
    names = dict.fromkeys(goal.ours.subject for goal in row.goals)
    return [name for name in names if row.subjects[name].name != "cpu_of_import"]


def _tables(row: Row, folder: Path, keep: Path | None) -> Iterator[str]:
    prepare(row, folder)
    for number, subject in enumerate(_ours(row)):
        file = (keep or folder).resolve() / f"{row.name}-{number}.profile"
        file.unlink(missing_ok=True)
        print(f"{row.name}: {subject}", file=sys.stderr, flush=True)
        try:
            figures_of(row.subjects[subject], folder, file)
        except Failed as failure:
            raise SystemExit(f"{row.name}: {subject}: {failure}") from failure
        title = row.title if subject == "modpack" else f"{row.title}: {subject}"
        yield f"### {title}\n\n{table(shares_of(read(file)))}\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/peers/profiled.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [row.name for row in rows() if _ours(row)]
    parser.add_argument("row", nargs="*", metavar="ROW", help=", ".join(names))
    parser.add_argument("--fast", action="store_true", help=f"sizes divided by {FAST_SHARE}")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the profiles stay")
    parser.add_argument("--folder", type=Path, help="where 20 GB may be written for a while")
    options = parser.parse_args()
    unknown = set(options.row) - set(names)
    if unknown:
        parser.error(f"no row, or none of which time is measured: {', '.join(sorted(unknown))}")
    if options.write and (options.fast or options.row):
        parser.error("--write wants all of it, in the real sizes")
    return options


if __name__ == "__main__":
    main()
