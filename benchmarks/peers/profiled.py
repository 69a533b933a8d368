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
import pstats
import sys
import sysconfig
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from measuring import Failed, Row, figures_of, prepare, remove_large
from page import replaced
from rows import rows

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
    made = f"Measured with Python {platform.python_version()} on {platform.system()}."
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


_ROOT = Path(__file__).parents[2] / "modpack"
_SITE = sysconfig.get_path("purelib")
_STANDARD = sysconfig.get_path("stdlib")
_BUILT_IN = "~"
_LEAST = 0.01
_Function = tuple[str, int, str]
"""A file, a line and a name, as :mod:`pstats` has it."""


@dataclass(frozen=True)
class Share:
    """What one part took.

    Attributes:
        place: a room of modpack, a library, a module of the standard library.
        share: of all profiled time; with the functions in C that it calls itself.
        in_c: of all profiled time, in those.
        most: what most of it went to.
    """

    place: str
    share: float
    in_c: float
    most: tuple[str, ...]


def shares_of(stats: Mapping[_Function, tuple]) -> list[Share]:  # type: ignore[type-arg]
    """The parts, the largest first.

    Args:
        stats: what :class:`pstats.Stats` holds.
    """
    whole: dict[str, Counter[str]] = defaultdict(Counter)
    in_c: Counter[str] = Counter()
    for function, (_, _, own, _, callers) in stats.items():
        if function[0] != _BUILT_IN:
            whole[_place(function[0])][f"{Path(function[0]).stem}.{function[2]}"] += own
            continue
        for caller, (_, _, for_caller, _) in callers.items():
            place = _place(caller[0])
            whole[place][_shown(function[2])] += for_caller
            in_c[place] += for_caller
    total = sum(each.total() for each in whole.values())
    shares = [
        Share(place, each.total() / total, in_c[place] / total, _most(each, total))
        for place, each in whole.items()
    ]
    return sorted(shares, key=lambda share: -share.share)


def table(shares: list[Share]) -> str:
    """The parts as a table in Markdown; what is below a hundredth is left out."""
    lines = ["| where | share | in C | most of it |", "|---|---:|---:|---|"]
    for share in shares:
        if share.share >= _LEAST:
            most = ", ".join(f"`{name}`" for name in share.most)
            lines.append(f"| {share.place} | {share.share:.0%} | {share.in_c:.0%} | {most} |")
    return "\n".join(lines)


def read(file: Path) -> Mapping[_Function, tuple]:  # type: ignore[type-arg]
    """A profile that was written to a file."""
    return pstats.Stats(str(file)).stats  # type: ignore[attr-defined,no-any-return]


def _most(spent: Counter[str], total: float) -> tuple[str, ...]:
    return tuple(name for name, taken in spent.most_common(3) if taken >= total * _LEAST)


def _place(file: str) -> str:
    if file == _BUILT_IN or file.startswith("<frozen"):
        return "Python's own imports" if file.startswith("<") else "Python itself"
    if file.startswith("<"):
        return "generated code"
    path = Path(file)
    if path.is_relative_to(_ROOT):
        return f"`{_room(path.relative_to(_ROOT))}`"
    if path.is_relative_to(_SITE):
        return path.relative_to(_SITE).parts[0]
    if path.is_relative_to(_STANDARD):
        return f"standard library: {path.relative_to(_STANDARD).parts[0].removesuffix('.py')}"
    return "the benchmark" if path.is_relative_to(_ROOT.parent) else "the project or the package"


def _room(path: Path) -> str:
    """A room is a folder; what stands on no floor but is a module of its own is that."""
    return f"modpack/{path.parts[0]}"


def _shown(name: str) -> str:
    """``<built-in method builtins.compile>`` is ``compile``."""
    for noise in ("built-in method ", "method ", "builtins.", " objects", "'", "<", ">"):
        name = name.replace(noise, "")
    return name


if __name__ == "__main__":
    main()
