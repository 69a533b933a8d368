"""TARGET and rules, as commands share them; and a plan for them that writes nothing."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from modpack.cli._common import warn
from modpack.cli._target import GivenRule, add_rules, pattern, rules_in_order
from modpack.core.names import as_allowances
from modpack.exporting.presets import POLICIES
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.cli._config import Settings
    from modpack.cli._target import Target
    from modpack.core.plan import Plan
    from modpack.exporter import PackageExporter

_DEFAULT_POLICY = "pinned"
PACKAGE = "__model__"
"""Where an object is saved if nobody says otherwise."""
RESOURCE = "model.pkl"
"""What it is called there."""

_Command = TypeVar("_Command", bound=Callable[..., object])
_RULE_HELP = {
    "intern": "Take the source of matching modules along.",
    "extern": "Import matching modules from where the package is loaded.",
    "mock": "Replace matching modules by stand-ins that fail when really used.",
    "deny": "Refuse to write a package that needs matching modules.",
}


def _allowances(
    ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    """The callback of ``--allow-secret``: checks each pattern."""
    try:
        as_allowances(values, "--allow-secret")
    except ValueError as failure:
        raise click.BadParameter(str(failure), ctx, parameter) from failure
    return values


_OTHERS = (
    click.option(
        "--policy",
        type=click.Choice(list(POLICIES)),
        help="What happens to modules that no rule names. pinned: installed distributions are "
        "extern, your own code is interned. hermetic: pure-Python distributions are interned too. "
        f"none: it is a problem.  [default: {_DEFAULT_POLICY}]",
    ),
    click.option(
        "--intern-native",
        is_flag=True,
        help="Take compiled modules along as well: the package then loads only on this platform, "
        "with this Python.",
    ),
    click.option(
        "--allow-secret",
        "allow_secrets",
        metavar="PATTERN",
        multiple=True,
        callback=_allowances,
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
    """Give a command the options that decide about modules.

    They are ``--intern``, ``--extern``, ``--mock``, ``--deny``, ``--policy``, ``--intern-native``,
    ``--allow-secret`` and ``--config``. The command must be a :class:`.RulesCommand`, and needs
    ``--debug`` besides; :func:`read_choices` reads them.
    """
    for option in reversed(_OTHERS):
        command = option(command)
    for name, text in reversed(_RULE_HELP.items()):
        option = click.option(
            f"--{name}", metavar="PATTERN", multiple=True, callback=pattern, help=text
        )
        command = option(command)
    return command


@dataclass(frozen=True)
class Choices:
    """A target and what decides about its modules, command line and configuration put together.

    Attributes:
        target: what is to be planned for.
        rules: rules, in order.
        policy: the policy for modules that no rule names.
        intern_native: whether compiled modules are taken along.
        debug: whether errors of the user's code carry their traceback.
        allow_secrets: where something may be that looks like a secret.
    """

    target: Target
    rules: tuple[GivenRule, ...]
    policy: str
    intern_native: bool
    debug: bool
    allow_secrets: tuple[str, ...] = ()


def chosen_settings(ctx: click.Context) -> Settings:
    """The settings of the file that ``--config`` names, or of the nearest pyproject.toml."""
    from modpack.cli._config import find_settings, read_settings

    config: Path | None = ctx.params["config"]
    return read_settings(config) if config is not None else find_settings(Path.cwd())


def read_choices(ctx: click.Context, target: str | None, settings: Settings) -> Choices:
    """What a command with :func:`planning_options` was told.

    Args:
        ctx: the command's context.
        target: TARGET; that of the settings if None.
        settings: the project's settings.

    Raises:
        click.UsageError: there is no TARGET at all.
        BadTargetError: it names no object.
    """
    given = ctx.params
    return Choices(
        _target(ctx, target, settings),
        (*rules_in_order(ctx), *settings.rules),
        given["policy"] or settings.policy or _DEFAULT_POLICY,
        given["intern_native"],
        given["debug"],
        (*given["allow_secrets"], *settings.allow_secrets),
    )


def _target(ctx: click.Context, target: str | None, settings: Settings) -> Target:
    from modpack.cli._target import parse_target

    if target is not None:
        return parse_target(target, Path.cwd())
    if settings.target is not None and settings.folder is not None:
        return parse_target(settings.target, settings.folder)
    raise click.UsageError("there is no TARGET, neither here nor in [tool.modpack]", ctx)


@contextlib.contextmanager
def building(
    choices: Choices, output: str | None = None, trial: bool | str = False
) -> Iterator[tuple[PackageExporter, object]]:
    """An exporter with the rules, and the object that is to be saved with it.

    The target can be imported for as long as the block runs.

    Args:
        choices: what decides.
        output: where the package is written; nothing is if None.
        trial: whether the package is tried.

    Raises:
        BadTargetError: the target leads nowhere.
        UserCodeError: the user's code raised something.
    """
    from modpack.cli._target import build, importable

    with importable(choices.target.folder), exporting(choices, output, trial) as exporter:
        yield exporter, build(choices.target, choices.debug)


@contextlib.contextmanager
def exporting(
    choices: Choices, output: str | None = None, trial: bool | str = False
) -> Iterator[PackageExporter]:
    """An exporter with the rules; see :func:`building`."""
    from modpack.exporter import PackageExporter

    with PackageExporter(
        output, debug=choices.debug, trial=trial, allow_secrets=choices.allow_secrets
    ) as exporter:
        add_rules(exporter, choices.rules)
        exporter.use_policy(choices.policy, intern_native=choices.intern_native)
        if choices.target.is_script:
            exporter.only_definitions(choices.target.module)
        yield exporter


def plan_target(choices: Choices) -> Plan:
    """The plan for a target: a dry run, which writes nothing.

    Warnings of modpack's that are no notes of the plan are told on stderr.

    Args:
        choices: the target, and what decides.

    Raises:
        BadTargetError: the target leads nowhere.
        UserCodeError: the user's code raised something.
        ModpackError: the object cannot be saved.
    """
    with (
        collected_warnings() as collected,
        building(choices) as (exporter, model),
        working(f"Planning {choices.target.text}"),
    ):
        with saving(choices):
            exporter.save_pickle(PACKAGE, RESOURCE, model)
        plan, _ = finished(exporter)
    for text in untold(collected, plan):
        warn(text)
    return plan


def finished(exporter: PackageExporter) -> tuple[Plan, bool]:
    """Close an exporter; tells its plan, and whether problems kept it from being carried out."""
    from modpack.core.plan import PackagingError

    try:
        return exporter.close(), False
    except PackagingError:
        return exporter.plan(), True


@contextlib.contextmanager
def saving(choices: Choices) -> Iterator[None]:
    """Pickling runs the objects' own ``__getstate__`` and ``__reduce__``.

    Raises:
        UserCodeError: they raised something.
    """
    from modpack.cli._target import users_code

    with users_code(f"packaging {choices.target.text}", choices.debug):
        yield


@contextlib.contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Keeps modpack's own warnings for the report; all others are shown as ever."""
    from modpack.errors import ModpackWarning

    collected: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", ModpackWarning)
        shown_as_ever = warnings.showwarning

        def collect(message: Warning | str, category: type[Warning], *where: object) -> None:
            if issubclass(category, ModpackWarning):
                collected.append(str(message))
            else:
                shown_as_ever(message, category, *where)  # type: ignore[arg-type]

        warnings.showwarning = collect  # type: ignore[assignment]
        yield collected


def untold(collected: list[str], plan: Plan) -> tuple[str, ...]:
    """The warnings that are no notes of the plan, each once."""
    told = {str(note) for note in plan.notes}
    return tuple(text for text in dict.fromkeys(collected) if text not in told)
