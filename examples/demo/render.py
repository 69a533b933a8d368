"""Renderables for the demo's results, readable without colors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from behavior import Check
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

_INK = 8
"""The lowest value of a pixel (0 to 16) that is drawn."""
_HALVES = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}


def heading(number: int, title: str) -> RenderableType:
    """Return the heading of a step."""
    return Group("", Rule(Text(f"{number}. {title}", "bold"), align="left", style="dim"))


def project_tree(folder: Path) -> RenderableType:
    """Return the project's files by Python package."""
    tree = Tree(Text(f"{folder}/", "bold"), guide_style="dim")
    for package, members in groupby(sorted(folder.rglob("*.py")), key=lambda file: file.parent):
        branch = tree.add(Text(f"{package.relative_to(folder).as_posix()}/", "bold"))
        branch.add(Text("  ".join(file.name for file in members)))
    return tree


def digits_strip(images: Sequence[Sequence[Sequence[float]]], predicted: Sequence[int]) -> str:
    """Return a drawing of images side by side, with the predictions below.

    Args:
        images: Images of 8 rows of 8 pixels, from 0 (paper) to 16 (ink).
        predicted: The predicted digit of each image.
    """
    lines = []
    for upper in range(0, 8, 2):
        drawn = (
            "".join(
                _HALVES[above >= _INK, below >= _INK]
                for above, below in zip(image[upper], image[upper + 1], strict=True)
            )
            for image in images
        )
        lines.append("  ".join(drawn).rstrip())
    return "\n".join([*lines, "  ".join(f"{digit:^8}" for digit in predicted).rstrip()])


def checks_table(checks: Sequence[Check]) -> RenderableType:
    """Return the checks with their results and evidence."""
    table = Table(box=None, padding=(0, 1), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for check in checks:
        verdict = Text("ok", "bold green") if check.passed else Text("FAILED", "bold red")
        table.add_row(verdict, Text.assemble(check.expectation, "\n", (check.evidence, "dim")))
    return table
