"""``modpack export``: from something that can be imported to a package."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from modpack.cli._console import make_console, show, warn, write
from modpack.cli._failures import FINDINGS, failing_clearly
from modpack.cli._rules import GivenRule, RulesCommand, add_rules, pattern, rules_in_order
from modpack.planning.presets import POLICIES

if TYPE_CHECKING:
    from modpack.cli._config import Settings
    from modpack.cli._target import Target
    from modpack.core.plan import Plan

__all__ = ["export_command"]

_Command = TypeVar("_Command", bound=Callable[..., object])
_RULE_HELP = {
    "intern": "Take the source of matching modules along.",
    "extern": "Import matching modules from where the package is loaded.",
    "mock": "Replace matching modules by stand-ins that fail when really used.",
    "deny": "Refuse to write a package that needs matching modules.",
}


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

    target: Target
    output: str | None
    rules: tuple[GivenRule, ...]
    policy: str
    intern_native: bool
    package: str
    resource: str
    debug: bool
    inputs: Target | None
    trial: bool | str


@dataclass(frozen=True)
class _Outcome:
    """What was done: the plan, and what was warned of besides its notes."""

    plan: Plan
    is_refused: bool
    warnings: tuple[str, ...]


def _rule_options(command: _Command) -> _Command:
    for name, text in reversed(_RULE_HELP.items()):
        option = click.option(
            f"--{name}", metavar="PATTERN", multiple=True, callback=pattern, help=text
        )
        command = option(command)
    return command


@click.command(
    "export",
    cls=RulesCommand,
    help=_HELP,
    epilog="Exit status: 0 if the package was written (or could be, with --dry-run); 1 if problems "
    "were found, and nothing was written; 2 if TARGET could not be built or FILE not be written.",
)
@click.argument("target", metavar="[TARGET]", required=False)
@click.option("-o", "--output", metavar="FILE", help="Where to write the package.")
@_rule_options
@click.option(
    "--policy",
    type=click.Choice(list(POLICIES)),
    help="What happens to modules that no rule names. pinned: installed distributions are "
    "extern, your own code is interned. hermetic: pure-Python distributions are interned too. "
    "none: it is a problem.  [default: pinned]",
)
@click.option(
    "--intern-native",
    is_flag=True,
    help="Take compiled modules along as well: the package then loads only on this platform, with "
    "this Python.",
)
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
@click.option("--package", default="__model__", show_default=True, help="Where to save the object.")
@click.option("--resource", default="model.pkl", show_default=True, help="What to call it there.")
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Read [tool.modpack] from this file.  [default: the nearest pyproject.toml that has it]",
)
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
    from modpack.cli._config import find_settings, read_settings
    from modpack.core.names import resource_record

    given = ctx.params
    config: Path | None = given["config"]
    settings = read_settings(config) if config is not None else find_settings(Path.cwd())
    try:
        resource_record(given["package"], given["resource"])
    except ValueError as failure:
        raise click.UsageError(str(failure), ctx) from failure
    return _Request(
        _target(ctx, settings),
        None if dry_run else _output(ctx, settings),
        (*rules_in_order(ctx), *settings.rules),
        given["policy"] or settings.policy or "pinned",
        given["intern_native"],
        given["package"],
        given["resource"],
        given["debug"],
        _inputs(ctx),
        given["trial"],
    )


def _target(ctx: click.Context, settings: Settings) -> Target:
    from modpack.cli._target import parse_target

    if ctx.params["target"] is not None:
        return parse_target(ctx.params["target"], Path.cwd())
    if settings.target is not None and settings.folder is not None:
        return parse_target(settings.target, settings.folder)
    raise click.UsageError("there is no TARGET, neither here nor in [tool.modpack]", ctx)


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
    from modpack.cli._target import build, importable, users_code
    from modpack.core.plan import PackagingError
    from modpack.exporter import PackageExporter

    with (
        importable(request.target.folder),
        _collected_warnings() as collected,
        PackageExporter(request.output, debug=request.debug, trial=request.trial) as exporter,
    ):
        add_rules(exporter, request.rules)
        exporter.use_policy(request.policy, intern_native=request.intern_native)
        model = build(request.target, request.debug)
        inputs = _built_inputs(request, model)
        if request.target.is_script:
            exporter.only_definitions(request.target.module)
        with _working(f"Packaging {request.target.text} ..."):
            # Pickling runs the objects' own __getstate__ and __reduce__.
            with users_code(f"packaging {request.target.text}", request.debug):
                if inputs is None:
                    exporter.save_pickle(request.package, request.resource, model)
                else:
                    exporter.save_model(
                        request.package, request.resource, model, example_inputs=inputs
                    )
            try:
                plan, is_refused = exporter.close(), False
            except PackagingError:
                plan, is_refused = exporter.plan(), True
    told = {str(note) for note in plan.notes}
    return _Outcome(plan, is_refused, tuple(dict.fromkeys(w for w in collected if w not in told)))


def _built_inputs(request: _Request, model: object) -> object:
    """The example inputs, if there are any."""
    from modpack.cli._target import build, importable
    from modpack.trial.examples import as_example

    if request.inputs is None:
        return None
    with importable(request.inputs.folder):
        inputs = build(request.inputs, request.debug)
    try:
        as_example(model, inputs, None)
    except (TypeError, ValueError) as failure:
        raise click.UsageError(f"--example-inputs {request.inputs.text}: {failure}") from failure
    return inputs


@contextlib.contextmanager
def _collected_warnings() -> Iterator[list[str]]:
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


@contextlib.contextmanager
def _working(what: str) -> Iterator[None]:
    """A sign of life on stderr, at a terminal only."""
    console = make_console(stderr=True)
    with console.status(what) if console.is_terminal else contextlib.nullcontext():
        yield


def _report_json(request: _Request, outcome: _Outcome) -> None:
    from modpack.report.archived import package_facts
    from modpack.report.as_json import dumps, package_document, plan_document
    from modpack.report.planned import plan_facts

    for text in outcome.warnings:
        warn(text)
    if request.output is None or outcome.is_refused:
        write(dumps(plan_document(plan_facts(outcome.plan))))
    else:
        write(dumps(package_document(package_facts(request.output))))


def _report_text(request: _Request, outcome: _Outcome, quiet: bool) -> None:
    from modpack.report.archived import package_facts
    from modpack.report.planned import plan_facts
    from modpack.report.text import package_report, plan_report, problems_report

    for text in outcome.warnings:
        warn(text)
    for note in outcome.plan.warnings() if quiet else ():
        warn(str(note))
    if outcome.is_refused:
        show(problems_report(outcome.plan.problems, request.debug, Path.cwd()))
        click.echo(_advice(request), err=True)
    elif quiet:
        return
    elif request.output is None:
        show(plan_report(plan_facts(outcome.plan), Path.cwd()))
        click.echo("Nothing was written: this was a dry run.", err=True)
    else:
        show(package_report(package_facts(request.output)))


def _advice(request: _Request) -> str:
    chains = "" if request.debug else " --debug shows who imports each of them."
    return f"Nothing was written.{chains}"
