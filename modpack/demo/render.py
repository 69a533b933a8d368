"""Renderables for the demo's results, readable without colors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from modpack import Action, Plan

if TYPE_CHECKING:
    from modpack.core.hookspec import HookSpec

_STYLES = {Action.INTERN: "green", Action.EXTERN: "cyan", Action.MOCK: "yellow"}
_INK = 8
"""The lowest value of a pixel (0 to 16) that is drawn."""
_HALVES = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}


class Check(NamedTuple):
    """An expectation, whether it is met, and the evidence."""

    expectation: str
    passed: bool
    evidence: str


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


def modules_table(plan: Plan, project: Path) -> RenderableType:
    """Return the modules with their importers, grouped by action and reason."""
    order = list(Action)
    decided = sorted(
        plan.decisions.values(), key=lambda d: (order.index(d.action), d.why, d.module)
    )
    width = max(map(len, plan.decisions), default=0)
    parts: list[RenderableType] = []
    for (action, why), group in groupby(decided, key=lambda d: (d.action, d.why)):
        modules = [decision.module for decision in group]
        count = f"{action.past}: {len(modules)} module{'s' if len(modules) > 1 else ''}"
        title = Text.assemble((count, f"bold {_STYLES[action]}"), ("  why: ", "dim"), why)
        table = _table(width)
        for module in modules:
            importer = _importer(plan, module, project)
            table.add_row(Text(module), Text(f"required by {importer}" if importer else ""))
        parts += ["", title, table]
    return Group(*parts)


def _table(width: int | None = None) -> Table:
    table = Table(box=None, padding=(0, 2), show_header=False, pad_edge=True)
    table.add_column(min_width=width, overflow="fold")
    table.add_column(overflow="fold", style="dim")
    return table


def _importer(plan: Plan, module: str, project: Path) -> str:
    """Return an importer of a module: ``file:line``, or the name of a resource."""
    edge = min(
        plan.graph.edges_to(module),
        key=lambda edge: (edge.line is None, edge.kind.value != "required"),
        default=None,
    )
    if edge is None:
        return ""
    importer = plan.decisions.get(edge.importer)
    if importer is None:
        return edge.importer.strip("<>")
    shown = importer.module
    if importer.location is not None and importer.location.file is not None:
        file = Path(importer.location.file)
        shown = file.relative_to(project).as_posix() if file.is_relative_to(project) else str(file)
    return shown if edge.line is None else f"{shown}:{edge.line}"


def unused_sources(plan: Plan, project: Path) -> str:
    """Return the sources of a project that are not in a plan."""
    locations = (plan.decisions[module].location for module in plan.modules(Action.INTERN))
    included = {location.file for location in locations if location is not None}
    files = (file for file in sorted(project.rglob("*.py")) if str(file) not in included)
    return ", ".join(file.relative_to(project).as_posix() for file in files)


def hooks_table(specs: Iterable[HookSpec]) -> RenderableType:
    """Return the captured hooks, each with its name or source.

    Hooks of the same kind and function share a row.
    """
    rows: dict[tuple[str, str], list[str]] = {}
    for spec in specs:
        function = spec.callable.source or spec.callable.name
        rows.setdefault((spec.kind, function), []).extend(spec.target)
    table = _table()
    for (kind, function), targets in rows.items():
        named = [target or "the model itself" for target in targets]
        more = f"{named[0]} and {len(named) - 1} others"
        owners = more if len(named) > 2 else " and ".join(named)
        table.add_row(Text(f"{kind} hook on {owners}"), Text(function))
    count = sum(map(len, rows.values()))
    return Group("", Text(f"captured: {count} model hooks", "bold magenta"), table)


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
