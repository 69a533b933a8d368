"""What commands that plan a package share: TARGET, rules and other options, the exporter."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from modpack.cli._common import collected_warnings, warn
from modpack.cli._config import GivenRule, read_settings
from modpack.core.names import GlobGroup, as_allowances
from modpack.core.rules import Action
from modpack.exporting.presets import PRESETS
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.cli._target import Target
    from modpack.core.plan import Plan
    from modpack.exporter import PackageExporter

PACKAGE = "__model__"
"""Where an object is saved if nobody says otherwise."""
RESOURCE = "model.pkl"
"""What it is called there."""

_DEFAULT_PRESET = "pinned"
_IN_ORDER = f"{__name__}.actions_in_order"
_Command = TypeVar("_Command", bound=Callable[..., object])
_Values = tuple[str, ...]


class RulesCommand(click.Command):
    """A command that remembers in which order the options of different rules were given.

    click collects the values of each option by itself; but the first rule that matches wins, so
    that ``--mock a.b --intern 'a.**'`` and the reverse differ.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args:
            _, _, given = self.make_parser(ctx).parse_args(args=list(args))
            actions = {action.value: action for action in Action}
            ctx.meta[_IN_ORDER] = [actions[p.name] for p in given if p.name in actions]
        return super().parse_args(ctx, args)


def checking(
    check: Callable[[_Values], object],
) -> Callable[[click.Context, click.Parameter, _Values], _Values]:
    """Make an option's callback of a check that raises a ValueError."""

    def callback(ctx: click.Context, parameter: click.Parameter, values: _Values) -> _Values:
        try:
            check(values)
        except ValueError as failure:
            raise click.BadParameter(str(failure), ctx, parameter) from failure
        return values

    return callback


def _rule_option(name: str, text: str) -> Callable[[_Command], _Command]:
    return click.option(
        f"--{name}",
        metavar="PATTERN",
        multiple=True,
        callback=checking(lambda patterns: [GlobGroup(pattern) for pattern in patterns]),
        help=text,
    )


_OPTIONS = (
    _rule_option("intern", "Take the source of matching modules along."),
    _rule_option("extern", "Import matching modules from where the package is loaded."),
    _rule_option("mock", "Replace matching modules by stand-ins that fail when really used."),
    _rule_option("deny", "Refuse to write a package that needs matching modules."),
    click.option(
        "--preset",
        type=click.Choice(list(PRESETS)),
        help="What happens to modules that no rule names. pinned: installed distributions are "
        "extern, your own code is interned. hermetic: pure-Python distributions are interned too. "
        f"none: it is a problem.  [default: {_DEFAULT_PRESET}]",
    ),
    click.option(
        "--intern-native",
        is_flag=True,
        help="Take compiled modules along as well: the package then loads only on this platform, "
        "with this Python.",
    ),
    click.option(
        "--allow-secrets-in",
        "allow_secrets_in",
        metavar="PATTERN",
        multiple=True,
        callback=checking(lambda patterns: as_allowances(patterns, "--allow-secrets-in")),
        help="Take along what looks like a secret in matching modules or records; with "
        "#FINGERPRINT behind PATTERN, only that one.",
    ),
    click.option(
        "--config",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Read [tool.modpack] from this file.  "
        "[default: the nearest pyproject.toml that has it]",
    ),
)


def planning_options(command: _Command) -> _Command:
    """Give a command the options that decide about modules; :func:`read_choices` reads them.

    The command must be a :class:`RulesCommand`, and needs ``--debug`` as well.
    """
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Choices:
    """A target and what decides about its modules, command line and configuration put together.

    Attributes:
        target: what is to be planned for.
        rules: rules, in order.
        preset: the preset for modules that no rule names.
        intern_native: whether compiled modules are taken along.
        debug: whether errors of the user's code carry their traceback.
        allow_secrets_in: where something may be that looks like a secret.
        output: where the configuration has the package written.
    """

    target: Target
    rules: tuple[GivenRule, ...]
    preset: str
    intern_native: bool
    debug: bool
    allow_secrets_in: tuple[str, ...]
    output: str | None


def read_choices(ctx: click.Context, target: str | None) -> Choices:
    """Read what a command with :func:`planning_options` was told.

    Args:
        ctx: the command's context.
        target: TARGET; that of the settings if None.

    Raises:
        click.UsageError: there is no TARGET at all.
        BadTargetError: it names no object.
        ConfigError: the settings are broken.
    """
    from modpack.cli._target import parse_target

    given = ctx.params
    settings = read_settings(given["config"])
    if target is not None:
        parsed = parse_target(target, Path.cwd())
    elif settings.target is not None:
        parsed = parse_target(settings.target, settings.folder)
    else:
        raise click.UsageError("there is no TARGET, neither here nor in [tool.modpack]", ctx)
    values = {action: iter(given[action.value]) for action in Action}
    rules = (GivenRule(action, (next(values[action]),)) for action in ctx.meta.get(_IN_ORDER, ()))
    output = settings.output
    return Choices(
        parsed,
        (*rules, *settings.rules),
        given["preset"] or settings.preset or _DEFAULT_PRESET,
        given["intern_native"],
        given["debug"],
        (*given["allow_secrets_in"], *settings.allow_secrets_in),
        None if output is None else os.path.relpath(settings.folder / output),
    )


@contextlib.contextmanager
def exporting(
    choices: Choices, output: str | None = None, self_test: bool | str = False
) -> Iterator[PackageExporter]:
    """An exporter with the rules.

    Args:
        choices: what decides.
        output: where the package is written; nothing is if None.
        self_test: whether the package is tried.
    """
    from modpack.exporter import PackageExporter

    with PackageExporter(
        output, debug=choices.debug, self_test=self_test, allow_secrets_in=choices.allow_secrets_in
    ) as exporter:
        for rule in choices.rules:
            add = getattr(exporter, rule.action.value)
            add(rule.include, exclude=rule.exclude, allow_empty=rule.allow_empty)
        exporter.use_preset(choices.preset, intern_native=choices.intern_native)
        if choices.target.is_script:
            exporter.treat_as_script(choices.target.module)
        yield exporter


def plan_target(choices: Choices) -> Plan:
    """Plan for a target: a dry run, which writes nothing.

    Warnings of modpack's that are no notes of the plan are told on stderr.

    Raises:
        BadTargetError: the target leads nowhere.
        UserCodeError: the user's code raised something.
        ModpackError: the object cannot be saved.
    """
    from modpack.cli._target import build, importable, packaging

    target = choices.target
    with (
        collected_warnings() as collected,
        importable(target.folder),
        exporting(choices) as exporter,
    ):
        model = build(target, choices.debug)
        with working(f"Planning {target.text}"):
            with packaging(target, choices.debug):
                exporter.save_pickle(PACKAGE, RESOURCE, model)
            plan, _ = finished(exporter)
    warn_beyond(plan, collected)
    return plan


def finished(exporter: PackageExporter) -> tuple[Plan, bool]:
    """Close an exporter; tells its plan, and whether problems kept it from being carried out."""
    from modpack.core.plan import PackagingError

    try:
        return exporter.close(), False
    except PackagingError:
        return exporter.plan(), True


def warn_beyond(plan: Plan, collected: list[str]) -> None:
    """Tell the warnings that are no notes of the plan, each once."""
    told = {str(note) for note in plan.notes}
    for text in dict.fromkeys(collected):
        if text not in told:
            warn(text)
