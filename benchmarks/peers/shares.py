"""Which part of the house the time of a profile was spent in."""

from __future__ import annotations

import pstats
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Share", "read", "shares_of", "table"]

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
