"""Rule options of ``modpack export``, whose order counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import click

from modpack.cli._config import GivenRule
from modpack.core.names import GlobGroup
from modpack.core.rules import Action

_IN_ORDER = f"{__name__}.actions_in_order"
_Command = TypeVar("_Command", bound=Callable[..., object])
_Values = tuple[str, ...]


class RulesCommand(click.Command):
    """A command that records the order of its rule options.

    click collects the values of each option separately. The first matching rule wins, so
    ``--mock a.b --intern 'a.**'`` differs from the reverse.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args:
            # A second parse, because click keeps no order across options.
            _, _, given = self.make_parser(ctx).parse_args(args=list(args))
            actions = {action.value: action for action in Action}
            ctx.meta[_IN_ORDER] = [actions[p.name] for p in given if p.name in actions]
        return super().parse_args(ctx, args)


def validate_with(
    check: Callable[[_Values], object],
) -> Callable[[click.Context, click.Parameter, _Values], _Values]:
    """Return an option's callback that turns a check's ValueError into a usage error."""

    def callback(ctx: click.Context, parameter: click.Parameter, values: _Values) -> _Values:
        try:
            check(values)
        except ValueError as failure:
            message = str(failure).removeprefix("include: ").removeprefix(f"{parameter.opts[0]}: ")
            raise click.BadParameter(message, ctx, parameter) from failure
        return values

    return callback


def given_rules(ctx: click.Context) -> Iterator[GivenRule]:
    """Yield the rules of a :class:`RulesCommand`, in the order of the command line."""
    # click keeps the order within each option, and parse_args that of the options.
    values = {action: iter(ctx.params[action.value]) for action in Action}
    for action in ctx.meta.get(_IN_ORDER, ()):
        yield GivenRule(action, (next(values[action]),))


def rule_option(name: str, text: str) -> Callable[[_Command], _Command]:
    """Return the option of a rule, such as ``--mock PATTERN``."""
    return click.option(
        f"--{name}",
        metavar="PATTERN",
        multiple=True,
        callback=validate_with(lambda patterns: [GlobGroup(pattern) for pattern in patterns]),
        help=text,
    )
