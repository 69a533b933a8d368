"""Rules as a user gives them, on the command line or in a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from modpack.core.actions import Action
from modpack.core.globs import GlobGroup

if TYPE_CHECKING:
    from modpack.exporter import PackageExporter

__all__ = ["GivenRule", "RulesCommand", "add_rules", "pattern", "rules_in_order"]

_IN_ORDER = f"{__name__}.actions_in_order"


@dataclass(frozen=True)
class GivenRule:
    """One rule: arguments for a method of the exporter.

    Attributes:
        action: which method.
        include: module path patterns.
        exclude: patterns for modules that do not match after all.
        allow_empty: whether the rule may match no module at all.
    """

    action: Action
    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    allow_empty: bool = True


class RulesCommand(click.Command):
    """A command that remembers in which order the options of different rules were given.

    click collects the values of each option by itself; but the first rule that matches wins, so
    that ``--mock a.b --intern 'a.**'`` and the reverse differ.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as usual, and keep the order in the context."""
        if args:
            _, _, given = self.make_parser(ctx).parse_args(args=list(args))
            actions = {action.value: action for action in Action}
            ctx.meta[_IN_ORDER] = [actions[p.name] for p in given if p.name in actions]
        return super().parse_args(ctx, args)


def pattern(
    ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    """The callback of rule options: checks each pattern."""
    for value in values:
        try:
            GlobGroup(value)
        except ValueError as failure:
            raise click.BadParameter(str(failure), ctx, parameter) from failure
    return values


def rules_in_order(ctx: click.Context) -> Iterator[GivenRule]:
    """The rules of a :class:`RulesCommand`, in the order of the command line."""
    values = {action: iter(ctx.params[action.value]) for action in Action}
    for action in ctx.meta.get(_IN_ORDER, ()):
        yield GivenRule(action, (next(values[action]),))


def add_rules(exporter: PackageExporter, rules: tuple[GivenRule, ...]) -> None:
    """Give rules to an exporter, in their order."""
    methods = {
        Action.INTERN: exporter.intern,
        Action.EXTERN: exporter.extern,
        Action.MOCK: exporter.mock,
        Action.DENY: exporter.deny,
    }
    for rule in rules:
        add = methods[rule.action]
        add(rule.include, exclude=rule.exclude, allow_empty=rule.allow_empty)
