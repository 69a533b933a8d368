"""The demo's facts as things that rich can print; plain text stays readable without colours."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from modpack.core.rules import Action
from modpack.demo.facts import Check, HookFact, ModuleFact, Packaged

STYLES = {Action.INTERN: "green", Action.EXTERN: "cyan", Action.MOCK: "yellow", Action.DENY: "red"}
INK = 8
"""From this value of a pixel on (0 to 16), it is drawn."""
HALVES = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}


def heading(number: int, title: str) -> RenderableType:
    """One step's headline."""
    return Group("", Rule(Text(f"{number}. {title}", "bold"), align="left", style="dim"))


def project_tree(folder: Path, files: Sequence[Path]) -> RenderableType:
    """The project's files below their packages."""
    tree = Tree(Text(f"{folder}/", "bold"), guide_style="dim")
    for package, members in groupby(files, key=lambda file: file.parent):
        branch = tree.add(Text(f"{package.relative_to(folder).as_posix()}/", "bold"))
        branch.add(Text("  ".join(file.name for file in members)))
    return tree


def modules_table(modules: Sequence[ModuleFact]) -> RenderableType:
    """Each module's fate: below what happened and why, the modules and who asked for them."""
    width = max((len(fact.module) for fact in modules), default=0)
    parts: list[RenderableType] = []
    for (action, rule), group in groupby(modules, key=lambda fact: (fact.action, fact.rule)):
        members = list(group)
        parts += ["", _fate(action, rule, len(members)), _members(members, width)]
    return Group(*parts)


def _fate(action: Action, rule: str, count: int) -> Text:
    what = f"{action.past}: {count} module{'s' if count > 1 else ''}"
    return Text.assemble((what, f"bold {STYLES[action]}"), ("  why: ", "dim"), rule)


def _members(members: Sequence[ModuleFact], width: int) -> Table:
    table = Table(box=None, padding=(0, 2), show_header=False, pad_edge=True)
    table.add_column(min_width=width, overflow="fold")
    table.add_column(overflow="fold", style="dim")
    for fact in members:
        table.add_row(Text(fact.module), Text(f"asked for by {fact.place}" if fact.place else ""))
    return table


def hooks_table(hooks: Sequence[HookFact]) -> RenderableType:
    """The model's hooks that travel, each with its source if it has no name to be imported by."""
    count = sum(len(hook.targets) for hook in hooks)
    table = Table(box=None, padding=(0, 2), show_header=False, pad_edge=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold", style="dim")
    for hook in hooks:
        places = Text(f"{hook.kind} hook on {_places(hook.targets)}")
        table.add_row(places, Text(hook.source or hook.called))
    return Group("", Text(f"captured: {count} hooks of the model", "bold magenta"), table)


def _places(targets: Sequence[str]) -> str:
    named = [target or "the model itself" for target in targets]
    if len(named) > 2:
        return f"{named[0]} and {len(named) - 1} others"
    return " and ".join(named)


def remarks(packaged: Packaged) -> RenderableType:
    """The plan's warnings, one on a line."""
    return Group(*(Text(f"note: {remark}", "yellow") for remark in packaged.remarks))


def digits_strip(images: Sequence[Sequence[Sequence[float]]], read: Sequence[int]) -> str:
    """Draw images side by side, and under each what was read in it.

    Args:
        images: for each image 8 rows of 8 pixels, from 0 (paper) to 16 (ink).
        read: the digit read in each.
    """
    drawn = [_drawn(image) for image in images]
    rows = ["  ".join(parts).rstrip() for parts in zip(*drawn, strict=True)]
    return "\n".join([*rows, "  ".join(f"{digit:^8}" for digit in read).rstrip()])


def _drawn(image: Sequence[Sequence[float]]) -> list[str]:
    dark = [[pixel >= INK for pixel in row] for row in image]
    return [
        "".join(HALVES[pair] for pair in zip(upper, lower, strict=True))
        for upper, lower in zip(dark[::2], dark[1::2], strict=True)
    ]


def checks_table(checks: Sequence[Check]) -> RenderableType:
    """Each promise, whether it was kept, and the evidence."""
    table = Table(box=None, padding=(0, 1), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for check in checks:
        verdict = Text("ok", "bold green") if check.kept else Text("FAILED", "bold red")
        table.add_row(verdict, Text.assemble(check.promise, "\n", (check.evidence, "dim")))
    return table


def human_size(size: int) -> str:
    """A number of bytes as people say it.

    >>> human_size(999), human_size(1500), human_size(2_340_000)
    ('999 B', '1.5 kB', '2.3 MB')
    """
    if size < 1000:
        return f"{size} B"
    return f"{size / 1000:.1f} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"
