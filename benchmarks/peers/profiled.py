"""Profile modpack's part of benchmark rows: ``python benchmarks/peers/profiled.py ROW``.

Prints a table of the time in each layer of modpack and each library, for each subject of modpack
with a goal. ``--write`` profiles all rows, and writes the tables to the docs. ``--keep`` stores the
profiles in a folder, for ``python -m pstats``.

A profile covers one thread, and slows down calls of Python functions. Other threads and processes
appear as waiting.
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
    """Profile, print, and write."""
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
    """Return the generated part of the page."""
    environment = f"Measured with Python {platform.python_version()} on {platform.system()}."
    return "\n\n".join(part.strip() for part in [environment, *parts])


def _ours(row: Row) -> list[str]:
    """Return modpack's subjects in a row that can be profiled."""
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
        except Failed as error:
            raise SystemExit(f"{row.name}: {subject}: {error}") from error
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
    parser.add_argument("--write", action="store_true", help=f"write the tables to {PAGE.name}")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="folder for the profiles")
    parser.add_argument("--folder", type=Path, help="folder for up to 20 GB of files")
    options = parser.parse_args()
    unknown = set(options.row) - set(names)
    if unknown:
        parser.error(f"unknown rows, or rows without times: {', '.join(sorted(unknown))}")
    if options.write and (options.fast or options.row):
        parser.error("--write cannot be combined with --fast or rows")
    return options


_ROOT = Path(__file__).parents[2] / "modpack"
_SITE = sysconfig.get_path("purelib")
_STANDARD = sysconfig.get_path("stdlib")
_BUILT_IN = "~"
_MINIMUM_SHARE = 0.01
_Function = tuple[str, int, str]
"""File, line, and name, as in :mod:`pstats`."""


@dataclass(frozen=True)
class Share:
    """The time spent in one part.

    Attributes:
        part: A layer of modpack, a library, or a module of the standard library.
        share: Share of the profiled time, including functions in C that the part calls directly.
        in_c: Share of the profiled time in these functions.
        most: Functions with the most time.
    """

    part: str
    share: float
    in_c: float
    most: tuple[str, ...]


def shares_of(stats: Mapping[_Function, tuple]) -> list[Share]:  # type: ignore[type-arg]
    """Return the shares of all parts, largest first.

    Args:
        stats: Contents of :class:`pstats.Stats`.
    """
    whole: dict[str, Counter[str]] = defaultdict(Counter)
    in_c: Counter[str] = Counter()
    for function, (_, _, own, _, callers) in stats.items():
        if function[0] != _BUILT_IN:
            whole[_part(function[0])][f"{Path(function[0]).stem}.{function[2]}"] += own
            continue
        for caller, (_, _, for_caller, _) in callers.items():
            part = _part(caller[0])
            whole[part][_shown(function[2])] += for_caller
            in_c[part] += for_caller
    total = sum(each.total() for each in whole.values())
    shares = [
        Share(part, each.total() / total, in_c[part] / total, _most(each, total))
        for part, each in whole.items()
    ]
    return sorted(shares, key=lambda share: -share.share)


def table(shares: list[Share]) -> str:
    """Return the shares as a Markdown table, without those below 1%."""
    lines = ["| part | share | in C | most time in |", "|---|---:|---:|---|"]
    for share in shares:
        if share.share >= _MINIMUM_SHARE:
            most = ", ".join(f"`{name}`" for name in share.most)
            lines.append(f"| {share.part} | {share.share:.0%} | {share.in_c:.0%} | {most} |")
    return "\n".join(lines)


def read(file: Path) -> Mapping[_Function, tuple]:  # type: ignore[type-arg]
    """Return the profile in a file."""
    return pstats.Stats(str(file)).stats  # type: ignore[attr-defined,no-any-return]


def _most(spent: Counter[str], total: float) -> tuple[str, ...]:
    return tuple(name for name, taken in spent.most_common(3) if taken >= total * _MINIMUM_SHARE)


def _part(file: str) -> str:
    if file == _BUILT_IN or file.startswith("<frozen"):
        return "Python's own imports" if file.startswith("<") else "Python itself"
    if file.startswith("<"):
        return "generated code"
    path = Path(file)
    if path.is_relative_to(_ROOT):
        return f"`{_layer(path.relative_to(_ROOT))}`"
    if path.is_relative_to(_SITE):
        return path.relative_to(_SITE).parts[0]
    if path.is_relative_to(_STANDARD):
        return f"standard library: {path.relative_to(_STANDARD).parts[0].removesuffix('.py')}"
    return "the benchmark" if path.is_relative_to(_ROOT.parent) else "the project or the package"


def _layer(path: Path) -> str:
    """Return the top-level folder or module of modpack."""
    return f"modpack/{path.parts[0]}"


def _shown(name: str) -> str:
    """Shorten ``<built-in method builtins.compile>`` to ``compile``."""
    for noise in ("built-in method ", "method ", "builtins.", " objects", "'", "<", ">"):
        name = name.replace(noise, "")
    return name


if __name__ == "__main__":
    main()
