"""``modpack export``: package a model that can be imported."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import click

from modpack.cli._command import command
from modpack.cli._config import read_settings
from modpack.cli._options import FILE
from modpack.cli._output import collect_warnings, show, warn, write_json
from modpack.cli._planning import RulesCommand, given_rules, rule_option, validate_with
from modpack.core.allowances import as_allowances
from modpack.exporting.presets import PRESETS
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.cli._target import Target
    from modpack.core.plan import Plan
    from modpack.exporter import PackageExporter
    from modpack.options import Preset, WeightsPlace

_DEFAULT_PRESET: Final = "pinned"
Dynamic: TypeAlias = dict[str, dict[int, str]]
"""The names of dimensions, by example input and index."""


def _read_dynamic(
    ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> Dynamic | None:
    """Read ``tokens:1=length``."""
    dynamic: Dynamic = {}
    for text in values:
        place, _, name = text.partition("=")
        argument, _, dimension = place.rpartition(":")
        # Negative dimensions count from the end, as in torch.
        if not argument or not dimension.lstrip("-").isdecimal() or not name.isidentifier():
            raise click.BadParameter(f"{text!r} is not INPUT:DIM=NAME, such as tokens:1=length.")
        dynamic.setdefault(argument, {})[int(dimension)] = name
    return dynamic or None


@command(
    "export",
    cls=RulesCommand,
    epilog="Exit status: 0 if the package was written, or could be (--dry-run); 1 if modpack found "
    "problems or the self-test failed; 2 if TARGET cannot be built or FILE cannot be written.",
)
@click.argument("target", metavar="[TARGET]", required=False, type=FILE)
@click.option("-o", "--output", metavar="FILE", type=FILE, help="Write the package to FILE.")
@rule_option("intern", "Include the source of matching modules.")
@rule_option("extern", "Import matching modules from the loading environment.")
@rule_option("mock", "Replace matching modules with mocks, which fail when used.")
@rule_option("deny", "Refuse to write a package that requires matching modules.")
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    help="Choose the handling of modules that no rule matches. pinned: extern installed "
    "distributions and intern your own code. hermetic: intern pure-Python distributions too. "
    f"none: report a problem.  [default: {_DEFAULT_PRESET}]",
)
@click.option(
    "--intern-native",
    is_flag=True,
    help="Include native extensions too. The package then requires this platform and Python "
    "version.",
)
@click.option(
    "--allow-secrets-in",
    metavar="PATTERN",
    multiple=True,
    callback=validate_with(lambda patterns: as_allowances(patterns, "--allow-secrets-in")),
    help="Include possible secrets in matching modules and records. PATTERN#FINGERPRINT "
    "includes only that one.",
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Read [tool.modpack] from FILE.  [default: the nearest pyproject.toml]",
)
@click.option("--debug", is_flag=True, help="Show import chains and tracebacks of your code.")
@click.option(
    "--example-inputs",
    metavar="TARGET",
    help="Test the package with these inputs before writing it: MODULE:ATTR or FILE.py:ATTR of a "
    "tuple of arguments, a mapping of keyword arguments, one argument, or a function that returns "
    "it.",
)
@click.option(
    "--dynamic",
    metavar="INPUT:DIM=NAME",
    multiple=True,
    callback=_read_dynamic,
    help="Name a dimension of an example input that may vary, such as tokens:1=length. Dimensions "
    "with the same name have the same size.",
)
@click.option(
    "--self-test/--no-self-test",
    default=None,
    help="Load the package in a clean interpreter, compare it with the model, and run the example "
    "inputs.  [default: self-test]",
)
@click.option(
    "--self-test-device",
    metavar="DEVICE",
    help="Run the example inputs on this device in the self-test, such as cpu. By default, tensors "
    "are loaded to the devices that they were saved on.",
)
@click.option(
    "--package",
    metavar="NAME",
    default="__model__",
    show_default=True,
    help="Set the first part of the object's name, PACKAGE/RESOURCE.",
)
@click.option(
    "--resource",
    metavar="NAME",
    default="model.pkl",
    show_default=True,
    help="Set the second part of the object's name, PACKAGE/RESOURCE.",
)
@click.option(
    "--bundle-loader",
    is_flag=True,
    help="Include a loader: python FILE then shows, runs, and tests the package where torch is "
    "installed and modpack is not.",
)
@click.option(
    "--weights",
    type=click.Choice(["inside", "external"]),
    default="inside",
    show_default=True,
    help="Store tensors in the package, or in safetensors files next to it that packages share.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan without writing a package.")
@click.option("-q", "--quiet", is_flag=True, help="Print warnings and problems only.")
@click.pass_context
def export_command(
    ctx: click.Context,
    /,
    target: str | None,
    output: str | None,
    preset: Preset | None,
    intern_native: bool,
    allow_secrets_in: tuple[str, ...],
    config: Path | None,
    debug: bool,
    example_inputs: str | None,
    dynamic: Dynamic | None,
    self_test: bool | None,
    self_test_device: str | None,
    package: str,
    resource: str,
    bundle_loader: bool,
    weights: WeightsPlace,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    **_: object,
) -> bool:
    """Package a model with its code, weights, and hooks.

    TARGET is MODULE:ATTR or FILE.py:ATTR; ATTR may be dotted. It names a model or any other
    object, or a function or class that modpack calls without arguments to get it. modpack puts
    the current folder first on the import path; for a file, the folder above its Python package.

    The first rule that matches a module determines how modpack handles it. Rules from
    pyproject.toml follow those of the command line. The standard library and torch are extern
    unless a rule names them explicitly. In a PATTERN, * matches within one component of a module
    name, and ** matches any number of components.

    \b
    Examples:
      modpack export train.py:make_model -o model.modpack
      modpack export mylib.zoo:Net -o net.modpack --mock 'wandb.**' --intern 'timm.**'
      modpack export train.py:make_model --dry-run

    \b
    In pyproject.toml:
      [tool.modpack]
      target = "train.py:make_model"
      output = "model.modpack"
      rules = [{ mock = "wandb.**" }, { intern = "timm.**", exclude = "timm.data.**" }]
    """
    from modpack.cli._target import importable, parse_target
    from modpack.core.names import resource_record
    from modpack.exporter import PackageExporter
    from modpack.options import is_tested_by_default
    from modpack.selftest.interpreters import prestart

    try:
        # Checked before the user's code runs, which can take minutes.
        resource_record(package, resource)
    except ValueError as failure:
        raise click.UsageError(str(failure), ctx) from failure
    if dynamic is not None and example_inputs is None:
        raise click.UsageError("--dynamic requires --example-inputs.", ctx)
    settings = read_settings(config)
    if target is None and settings.target is None:
        raise click.UsageError(
            "missing TARGET. Pass MODULE:ATTR or FILE.py:ATTR, or set `target` in [tool.modpack].",
            ctx,
        )
    chosen = (
        parse_target(target, Path.cwd())
        if target is not None
        else parse_target(settings.target or "", settings.folder)
    )
    # A dry run with -o leaves the file alone: without a target, the exporter only plans.
    if dry_run:
        output = None
    elif output is None and settings.output is not None:
        # Settings are relative to their file, and messages show what the user can type.
        output = os.path.relpath(settings.folder / settings.output)
    if output is None and not dry_run:
        raise click.UsageError(
            "missing output path. Pass -o FILE, set `output` in [tool.modpack], or use --dry-run.",
            ctx,
        )
    if self_test is None:
        self_test = is_tested_by_default(example_inputs is not None)
    if self_test and not dry_run:
        prestart()  # it imports torch while the model is built
    example = None if example_inputs is None else parse_target(example_inputs, Path.cwd())
    with (
        # In this order: the exporter opens the file before the user's code builds the model.
        collect_warnings() as collected,
        importable(chosen.folder),
        PackageExporter(
            output,
            debug=debug,
            self_test=self_test,
            self_test_device=self_test_device,
            bundle_loader=bundle_loader,
            weights=weights,
            allow_secrets_in=(*allow_secrets_in, *settings.allow_secrets_in),
        ) as exporter,
    ):
        # The first matching rule wins, so the command line overrides the file, and both the preset.
        for rule in (*given_rules(ctx), *settings.rules):
            add = getattr(exporter, rule.action.value)
            add(rule.include, exclude=rule.exclude, allow_empty=rule.allow_empty)
        chosen_preset = preset or settings.preset or _DEFAULT_PRESET
        exporter.use_preset(chosen_preset, intern_native=intern_native)
        task, name = f"{'Planning' if dry_run else 'Packaging'} {chosen.text}", (package, resource)
        plan, has_problems = _package(exporter, task, name, chosen, example, dynamic)
    # A warning may be raised while the plan is made that has the same note.
    reported = {str(note) for note in plan.notes}
    for text in dict.fromkeys(collected):
        if text not in reported:
            warn(text)
    written = None if has_problems else output
    if as_json:
        from modpack.report.facts import PlanFacts, plan_facts
        from modpack.report.package_info import package_facts

        write_json(
            plan_facts(plan) if written is None else PlanFacts.of_package(package_facts(written))
        )
        return has_problems
    for note in plan.warnings() if quiet else ():
        warn(str(note))
    if has_problems:
        from modpack.report.text import problems_report

        show(problems_report(plan.problems, debug, Path.cwd()))
        chains = "" if debug else " Pass --debug to show the import chains."
        click.echo(f"No file was written.{chains}", err=True)
    elif not quiet:
        _report_text(plan, written)
    return has_problems


def _package(
    exporter: PackageExporter,
    task: str,
    name: tuple[str, str],
    target: Target,
    example: Target | None,
    dynamic: Dynamic | None,
) -> tuple[Plan, bool]:
    """Build and save the object of a target.

    Returns:
        The plan, and whether its problems prevented the export.

    Raises:
        BadTargetError: If a target does not name an object.
        UserCodeError: If the user's code raises an exception.
        ModpackError: If the object cannot be saved.
    """
    from modpack.cli._target import build, importable, user_code_errors
    from modpack.core.plan import PackagingError
    from modpack.selftest.reference import as_example

    if target.is_script:
        exporter.treat_as_script(target.module)
    model = build(target, exporter.debug)
    inputs: object = None
    if example is not None:
        # The inputs may come from another folder than the model.
        with importable(example.folder):
            inputs = build(example, exporter.debug)
        try:
            # Checked here, because this error is about an option, and not about the model's code.
            as_example(model, inputs, None)
        except (TypeError, ValueError) as failure:
            raise click.UsageError(f"--example-inputs {example.text}: {failure}") from failure
    with working(task):
        with user_code_errors(f"packaging {target.text}", exporter.debug):
            if example is None:
                exporter.save_pickle(*name, model)
            else:
                exporter.save_model(*name, model, example_inputs=inputs, dynamic=dynamic)
        try:
            return exporter.close(), False
        except PackagingError:
            return exporter.plan(), True


def _report_text(plan: Plan, written: str | None) -> None:
    from modpack.core.plan import UseKind
    from modpack.report.facts import plan_facts
    from modpack.report.package_info import package_facts
    from modpack.report.text import package_report, plan_report

    if written is None:
        show(plan_report(plan_facts(plan), Path.cwd()))
        click.echo("No file was written: this was a dry run.", err=True)
        return
    facts = package_facts(written)
    show(package_report(facts))
    # Without a run, nothing is known about functions, and a mock fails when one is called.
    is_observed = facts.self_test is not None and facts.self_test.runs > 0
    mocks = sorted({use.module for use in plan.mock_uses if use.kind is UseKind.FUNCTION_BODY})
    if mocks and not is_observed:
        more = f" and {len(mocks) - 3} more" if len(mocks) > 3 else ""
        click.echo(
            f"Functions use mocks of {', '.join(mocks[:3])}{more}, which raise "
            "NotImplementedError, and no run has observed them. Pass --example-inputs. Run modpack "
            f"audit {written} for the locations.",
            err=True,
        )
