"""``modpack export``: from something that can be imported to a package."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modpack.cli._common import FINDINGS, complete_file, failing_clearly, show, warn, write
from modpack.cli._dry_run import (
    PACKAGE,
    RESOURCE,
    Choices,
    building,
    chosen_settings,
    collected_warnings,
    finished,
    planning_options,
    read_choices,
    saving,
    untold,
)
from modpack.cli._target import RulesCommand
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.cli._config import Settings
    from modpack.cli._target import Target
    from modpack.core.plan import Plan

_HELP = """\
Package a model with the code that it needs.

TARGET is MODULE:ATTR or FILE.py:ATTR; ATTR may be dotted. It names a model, or any object;
or a function or class that is called without arguments and returns it. The current folder,
or for a file the folder above its packages, comes first on the import path.

Rules apply in the order in which they are given: the first that matches a module decides.
Rules in pyproject.toml come after those. The standard library and torch are always extern
unless a rule spells their name. In a PATTERN, * stands for a part of one component of a
module path, ** for any number of components.

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


@dataclass(frozen=True)
class _Request:
    """What is to be done, command line and configuration put together."""

    choices: Choices
    output: str | None
    package: str
    resource: str
    inputs: Target | None
    trial: bool | str


@dataclass(frozen=True)
class _Outcome:
    """What was done: the plan, and what was warned of besides its notes."""

    plan: Plan
    is_refused: bool
    warnings: tuple[str, ...]


@click.command(
    "export",
    cls=RulesCommand,
    help=_HELP,
    epilog="Exit status: 0 if the package was written (or could be, with --dry-run); 1 if problems "
    "were found, and nothing was written; 2 if TARGET could not be built or FILE not be written.",
)
@click.argument("target", metavar="[TARGET]", required=False, shell_complete=complete_file)
@click.option("-o", "--output", metavar="FILE", help="Where to write the package.")
@planning_options
@click.option(
    "--example-inputs",
    metavar="TARGET",
    help="What to try the package with before it is written: MODULE:ATTR or FILE.py:ATTR of a "
    "tuple of arguments, a mapping of arguments by name, or one argument; or of a function that "
    "returns it.",
)
@click.option(
    "--trial/--no-trial",
    default=True,
    help="Whether to try the package on the example inputs.  [default: trial]",
)
@click.option("--package", default=PACKAGE, show_default=True, help="Where to save the object.")
@click.option("--resource", default=RESOURCE, show_default=True, help="What to call it there.")
@click.option("--dry-run", is_flag=True, help="Decide and report, write nothing.")
@click.option("--debug", is_flag=True, help="Show import chains, and tracebacks of your own code.")
@click.option("-q", "--quiet", is_flag=True, help="Print warnings and problems only.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def export_command(
    ctx: click.Context, /, dry_run: bool, quiet: bool, as_json: bool, **_: object
) -> None:
    """Package a model with the code that it needs."""
    with failing_clearly(as_json):
        request = _request(ctx, dry_run)
        outcome = _carry_out(request)
        if as_json:
            _report_json(request, outcome)
        else:
            _report_text(request, outcome, quiet)
    ctx.exit(FINDINGS if outcome.is_refused else 0)


def _request(ctx: click.Context, dry_run: bool) -> _Request:
    from modpack.core.names import resource_record

    given = ctx.params
    settings = chosen_settings(ctx)
    try:
        resource_record(given["package"], given["resource"])
    except ValueError as failure:
        raise click.UsageError(str(failure), ctx) from failure
    return _Request(
        read_choices(ctx, given["target"], settings),
        None if dry_run else _output(ctx, settings),
        given["package"],
        given["resource"],
        _inputs(ctx),
        given["trial"],
    )


def _inputs(ctx: click.Context) -> Target | None:
    from modpack.cli._target import parse_target

    given = ctx.params["example_inputs"]
    return parse_target(given, Path.cwd()) if given is not None else None


def _output(ctx: click.Context, settings: Settings) -> str:
    if ctx.params["output"] is not None:
        return str(ctx.params["output"])
    if settings.output is not None and settings.folder is not None:
        return os.path.relpath(settings.folder / settings.output)
    raise click.UsageError(
        "there is no --output, neither here nor in [tool.modpack]. --dry-run writes nothing", ctx
    )


def _carry_out(request: _Request) -> _Outcome:
    choices = request.choices
    with (
        collected_warnings() as collected,
        building(choices, request.output, request.trial) as (exporter, model),
    ):
        inputs = _built_inputs(request, model)
        with working(f"Packaging {choices.target.text}"):
            with saving(choices):
                if inputs is None:
                    exporter.save_pickle(request.package, request.resource, model)
                else:
                    exporter.save_model(
                        request.package, request.resource, model, example_inputs=inputs
                    )
            plan, is_refused = finished(exporter)
    return _Outcome(plan, is_refused, untold(collected, plan))


def _built_inputs(request: _Request, model: object) -> object:
    """The example inputs, if there are any."""
    from modpack.cli._target import build, importable
    from modpack.selftest.reference import as_example

    if request.inputs is None:
        return None
    with importable(request.inputs.folder):
        inputs = build(request.inputs, request.choices.debug)
    try:
        as_example(model, inputs, None)
    except (TypeError, ValueError) as failure:
        raise click.UsageError(f"--example-inputs {request.inputs.text}: {failure}") from failure
    return inputs


def _report_json(request: _Request, outcome: _Outcome) -> None:
    from modpack.report.facts import plan_facts
    from modpack.report.json_output import dumps, package_document, plan_document
    from modpack.report.package_info import package_facts

    for text in outcome.warnings:
        warn(text)
    if request.output is None or outcome.is_refused:
        write(dumps(plan_document(plan_facts(outcome.plan))))
    else:
        write(dumps(package_document(package_facts(request.output))))


def _report_text(request: _Request, outcome: _Outcome, quiet: bool) -> None:
    from modpack.report.facts import plan_facts
    from modpack.report.package_info import package_facts
    from modpack.report.text import package_report, plan_report, problems_report

    for text in outcome.warnings:
        warn(text)
    for note in outcome.plan.warnings() if quiet else ():
        warn(str(note))
    if outcome.is_refused:
        show(problems_report(outcome.plan.problems, request.choices.debug, Path.cwd()))
        click.echo(_advice(request), err=True)
    elif quiet:
        return
    elif request.output is None:
        show(plan_report(plan_facts(outcome.plan), Path.cwd()))
        click.echo("Nothing was written: this was a dry run.", err=True)
    else:
        show(package_report(package_facts(request.output)))
        _tell_of_mocks(outcome.plan, request.output)


def _tell_of_mocks(plan: Plan, output: str) -> None:
    """Say whether a stand-in may be called; the audit tells where."""
    mocks = sorted({use.module for use in plan.uses if use.is_reachable})
    if mocks:
        more = f" and {len(mocks) - 3} more" if len(mocks) > 3 else ""
        names = f"{', '.join(mocks[:3])}{more}"
        click.echo(
            f"What is mocked of {names} may be called, and will raise NotImplementedError then; "
            f"modpack audit {output} tells where.",
            err=True,
        )


def _advice(request: _Request) -> str:
    chains = "" if request.choices.debug else " --debug shows who imports each of them."
    return f"Nothing was written.{chains}"
