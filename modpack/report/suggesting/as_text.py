"""Suggested rules: as options, as lines of a pyproject.toml, and with their reasons for people."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from modpack.core.actions import Action
from modpack.core.usage import MockRisk
from modpack.report.pieces import indented, relative, title
from modpack.report.suggesting.advising import Kind
from modpack.report.suggesting.suggestions import Reach, Suggestion
from modpack.report.text import STYLES
from modpack.report.wording import counted, printable

__all__ = ["GivenRow", "as_option", "as_toml", "reasons", "suggestions_report"]

_MOST_PLACES: Final = 2
_MOST_MODULES: Final = 4
_TITLES: Final = {
    Kind.OWN: "your own code",
    Kind.INSTALLED: "installed distributions",
    Kind.MISSING: "not installed here",
}


def as_option(action: Action, patterns: Sequence[str]) -> str:
    """A rule as options of a command, quoted for a shell.

    >>> as_option(Action.EXTERN, ["numpy.**"])
    "--extern 'numpy.**'"
    """
    return " ".join(f"--{action.value} {shlex.quote(pattern)}" for pattern in patterns)


def as_toml(
    action: Action,
    patterns: Sequence[str],
    exclude: Sequence[str] = (),
    allow_empty: bool = True,
) -> str:
    """A rule as an entry of ``rules`` in a pyproject.toml.

    >>> print(as_toml(Action.MOCK, ["wandb.**"]), as_toml(Action.EXTERN, ["a.b.**", "a.c.**"]))
    { mock = "wandb.**" } { extern = ["a.b.**", "a.c.**"] }
    """
    left_out = f", exclude = {_value(exclude)}" if exclude else ""
    must_match = "" if allow_empty else ", allow_empty = false"
    return f"{{ {action.value} = {_value(patterns)}{left_out}{must_match} }}"


def _value(patterns: Sequence[str]) -> str:
    return json.dumps(patterns[0] if len(patterns) == 1 else list(patterns))


def reasons(found: Suggestion, folder: Path | None = None) -> Iterator[str]:
    """What speaks for a rule, in short sentences.

    Args:
        found: the rule.
        folder: files below it are shown relative to it.
    """
    yield _what(found)
    yield _need(found, folder)
    if found.advice.why:
        yield found.advice.why
    if found.mock_risk is MockRisk.UNUSED:
        option = as_option(Action.MOCK, found.advice.patterns)
        yield f"nothing that can run uses it: {option} would do, unless its import has effects"
    elif found.mock_risk is MockRisk.IMPORT_TIME:
        option = as_option(Action.MOCK, found.advice.patterns)
        yield f"it is used only while modules are imported: {option} may do"


GivenRow = tuple[Action, Sequence[str], Sequence[str], bool]
"""A rule that the user gave: what it does, its patterns, those that it excludes, and whether it may
match nothing."""


def suggestions_report(
    found: Sequence[Suggestion], folder: Path | None = None, given: Sequence[GivenRow] = ()
) -> RenderableType:
    """Every rule with its reasons, and all of them once more for a pyproject.toml.

    Args:
        found: the rules, in the order in which they must be given.
        folder: files below it are shown relative to it.
        given: the rules that there are already: they come first.
    """
    parts: list[RenderableType] = []
    for kind in Kind:
        group = [each for each in found if each.advice.kind is kind]
        if group:
            parts += [title(_TITLES[kind], "blue"), *_group(group, folder), ""]
    return Group(*parts, title("in pyproject.toml", "blue"), *_toml(found, given))


def _group(group: Sequence[Suggestion], folder: Path | None) -> Iterator[RenderableType]:
    for each in group:
        action = each.advice.action
        option = as_option(action, each.advice.patterns)
        yield indented(Text(printable(option), STYLES[action]), 2)
        for reason in reasons(each, folder):
            yield indented(Text(printable(reason), "dim"), 6)


def _toml(found: Sequence[Suggestion], given: Sequence[GivenRow]) -> Iterator[RenderableType]:
    rows = [as_toml(*rule) for rule in given]
    rows += [as_toml(each.advice.action, each.advice.patterns) for each in found]
    yield Text("[tool.modpack]")
    yield Text('policy = "none"')
    yield Text("rules = [")
    yield from (Text(f"    {row},") for row in rows)
    yield Text("]")


def _what(found: Suggestion) -> str:
    """What the modules are."""
    modules = _listed(found.modules)
    if found.advice.kind is Kind.MISSING:
        return f"{modules}: not installed here, so that nothing that works here runs it"
    distribution = found.distribution
    if distribution is None:
        return modules
    licence = distribution.licence or "licence unknown"
    code = "compiled code" if found.is_compiled else "pure Python"
    editable = ", an editable install" if distribution.editable else ""
    return f"{modules}: {distribution.name} {distribution.version} ({licence}), {code}{editable}"


def _listed(modules: Sequence[str]) -> str:
    """The modules, if they are few; how many there are."""
    if len(modules) <= _MOST_MODULES:
        return ", ".join(modules)
    shown = ", ".join(modules[:_MOST_MODULES])
    return f"{counted(len(modules), 'module')} ({shown}, ...)"


def _need(found: Suggestion, folder: Path | None) -> str:
    if not found.importers:
        return "saved by name"
    if found.reach is Reach.HELD:
        held = dict.fromkeys(name for step in found.importers[:1] for name in step.names)
        return f"{found.importers[0].importer} holds {', '.join(held) or 'something of it'}"
    places = dict.fromkeys(step.place or step.importer for step in found.importers)
    shown = ", ".join(relative(place, folder) for place in list(places)[:_MOST_PLACES])
    more = len(places) - _MOST_PLACES
    rest = f" and {counted(more, 'more place')}" if more > 0 else ""
    return f"{_HOW[found.reach]}: {shown}{rest}"


_HOW: Final = {
    Reach.AT_ONCE: "imported at once",
    Reach.IN_FUNCTIONS: "imported in functions only",
    Reach.GUARDED: "imported only where its absence is coped with",
}
