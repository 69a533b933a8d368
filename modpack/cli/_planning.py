"""Shared parts of the commands that plan a package: TARGET, rules, options, and the exporter."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import click

from modpack.cli._config import GivenRule, read_settings
from modpack.cli._output import collect_warnings, warn
from modpack.core.names import GlobGroup, as_allowances
from modpack.core.rules import Action
from modpack.exporting.presets import PRESETS
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.cli._target import Target
    from modpack.core.plan import Plan
    from modpack.options import Preset, SelfTest, WeightsPlace

PACKAGE = "__model__"
"""The default package of the saved object."""
RESOURCE = "model.pkl"
"""The default resource name of the saved object."""

_DEFAULT_PRESET: Final = "pinned"
_IN_ORDER = f"{__name__}.actions_in_order"
_Command = TypeVar("_Command", bound=Callable[..., object])
_Values = tuple[str, ...]
Dynamic: TypeAlias = dict[str, dict[int, str]]
"""The names of dimensions, by example input and index."""


class RulesCommand(click.Command):
    """A command that records the order of its rule options.

    click collects the values of each option separately. The first matching rule wins, so
    ``--mock a.b --intern 'a.**'`` differs from the reverse.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args:
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


def _rule_option(name: str, text: str) -> Callable[[_Command], _Command]:
    return click.option(
        f"--{name}",
        metavar="PATTERN",
        multiple=True,
        callback=validate_with(lambda patterns: [GlobGroup(pattern) for pattern in patterns]),
        help=text,
    )


_OPTIONS = (
    _rule_option("intern", "Include the source of matching modules."),
    _rule_option("extern", "Import matching modules from the loading environment."),
    _rule_option("mock", "Replace matching modules with mocks, which fail when used."),
    _rule_option("deny", "Refuse to write a package that requires matching modules."),
    click.option(
        "--preset",
        type=click.Choice(list(PRESETS)),
        help="Choose the handling of modules that no rule matches. pinned: extern installed "
        "distributions and intern your own code. hermetic: intern pure-Python distributions too. "
        f"none: report a problem.  [default: {_DEFAULT_PRESET}]",
    ),
    click.option(
        "--intern-native",
        is_flag=True,
        help="Include native extensions too. The package then requires this platform and Python "
        "version.",
    ),
    click.option(
        "--allow-secrets-in",
        "allow_secrets_in",
        metavar="PATTERN",
        multiple=True,
        callback=validate_with(lambda patterns: as_allowances(patterns, "--allow-secrets-in")),
        help="Include possible secrets in matching modules and records. PATTERN#FINGERPRINT "
        "includes only that one.",
    ),
    click.option(
        "--config",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Read [tool.modpack] from FILE.  [default: the nearest pyproject.toml]",
    ),
    click.option("--debug", is_flag=True, help="Show import chains and tracebacks of your code."),
)


def planning_options(command: _Command) -> _Command:
    """Add the options for making a plan; :func:`read_plan_options` reads them.

    The command must be a :class:`RulesCommand`.
    """
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class PlanOptions:
    """A target and its options, merged from the command line and the configuration file.

    Attributes:
        target: The object to package.
        rules: The rules, in order.
        preset: The preset for modules that no rule matches.
        intern_native: Whether native extensions are included.
        debug: Whether errors in the user's code include their traceback.
        allow_secrets_in: Patterns of modules and records that may contain possible secrets.
        output: The package path in the configuration file.
    """

    target: Target
    rules: tuple[GivenRule, ...]
    preset: Preset
    intern_native: bool
    debug: bool
    allow_secrets_in: tuple[str, ...]
    output: str | None


def read_plan_options(ctx: click.Context, target: str | None) -> PlanOptions:
    """Read the options of a command with :func:`planning_options`.

    Args:
        ctx: The command's context.
        target: TARGET. None takes it from the settings.

    Raises:
        click.UsageError: If neither the command line nor the settings have a TARGET.
        BadTargetError: If TARGET does not name an object.
        ConfigError: If the settings are invalid.
    """
    from modpack.cli._target import parse_target

    given = ctx.params
    settings = read_settings(given["config"])
    if target is not None:
        parsed = parse_target(target, Path.cwd())
    elif settings.target is not None:
        parsed = parse_target(settings.target, settings.folder)
    else:
        raise click.UsageError(
            "missing TARGET. Pass MODULE:ATTR or FILE.py:ATTR, or set `target` in [tool.modpack].",
            ctx,
        )
    values = {action: iter(given[action.value]) for action in Action}
    rules = (GivenRule(action, (next(values[action]),)) for action in ctx.meta.get(_IN_ORDER, ()))
    output = settings.output
    return PlanOptions(
        parsed,
        (*rules, *settings.rules),
        given["preset"] or settings.preset or _DEFAULT_PRESET,
        given["intern_native"],
        given["debug"],
        (*given["allow_secrets_in"], *settings.allow_secrets_in),
        None if output is None else os.path.relpath(settings.folder / output),
    )


def package_target(
    options: PlanOptions,
    output: str | None = None,
    *,
    name: tuple[str, str] = (PACKAGE, RESOURCE),
    example: Target | None = None,
    dynamic: Dynamic | None = None,
    self_test: SelfTest = False,
    self_test_device: str | None = None,
    bundle_loader: bool = False,
    weights: WeightsPlace = "inside",
) -> tuple[Plan, bool]:
    """Build the object of a target, and package it or plan its package.

    modpack's warnings that are not in the plan are printed to stderr.

    Args:
        options: The target, the rules, and other options.
        output: The path of the package. None writes no file.
        name: Package and resource of the saved object.
        example: The example inputs.
        dynamic: Names of dimensions of example inputs that may vary.
        self_test: Whether the exporter runs the self-test.
        self_test_device: The device on which the self-test runs the example inputs.
        bundle_loader: Whether the package contains a loader.
        weights: Where tensors are stored.

    Returns:
        The plan, and whether its problems prevented the export.

    Raises:
        BadTargetError: If the target does not name an object.
        UserCodeError: If the user's code raises an exception.
        ModpackError: If the object cannot be saved.
    """
    from modpack.cli._target import build, importable, user_code_errors
    from modpack.core.plan import PackagingError
    from modpack.exporter import PackageExporter

    target = options.target
    with (
        collect_warnings() as collected,
        importable(target.folder),
        PackageExporter(
            output,
            debug=options.debug,
            self_test=self_test,
            self_test_device=self_test_device,
            bundle_loader=bundle_loader,
            weights=weights,
            allow_secrets_in=options.allow_secrets_in,
        ) as exporter,
    ):
        for rule in options.rules:
            add = getattr(exporter, rule.action.value)
            add(rule.include, exclude=rule.exclude, allow_empty=rule.allow_empty)
        exporter.use_preset(options.preset, intern_native=options.intern_native)
        if target.is_script:
            exporter.treat_as_script(target.module)
        model = build(target, options.debug)
        inputs = None if example is None else _build_inputs(example, model, options.debug)
        has_problems = False
        with working(f"{'Planning' if output is None else 'Packaging'} {target.text}"):
            with user_code_errors(f"packaging {target.text}", options.debug):
                if inputs is None:
                    exporter.save_pickle(*name, model)
                else:
                    exporter.save_model(*name, model, example_inputs=inputs, dynamic=dynamic)
            try:
                plan = exporter.close()
            except PackagingError:
                plan, has_problems = exporter.plan(), True
    reported = {str(note) for note in plan.notes}
    for text in dict.fromkeys(collected):
        if text not in reported:
            warn(text)
    return plan, has_problems


def _build_inputs(example: Target, model: object, debug: bool) -> object:
    from modpack.cli._target import build, importable
    from modpack.selftest.reference import as_example

    with importable(example.folder):
        inputs = build(example, debug)
    try:
        as_example(model, inputs, None)
    except (TypeError, ValueError) as failure:
        raise click.UsageError(f"--example-inputs {example.text}: {failure}") from failure
    return inputs
