"""``modpack export``: from something that can be imported to a package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from modpack.cli._common import FILE, collected_warnings, command, show, warn, write_json
from modpack.cli._planning import (
    PACKAGE,
    RESOURCE,
    RulesCommand,
    exporting,
    finished,
    planning_options,
    read_choices,
    warn_beyond,
)
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.cli._target import Target
    from modpack.core.plan import Plan


@command(
    "export",
    cls=RulesCommand,
    epilog="Exit status: 0 if the package was written (or could be, with --dry-run); 1 if problems "
    "were found, and nothing was written; 2 if TARGET could not be built or FILE not be written.",
)
@click.argument("target", metavar="[TARGET]", required=False, type=FILE)
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
    "--self-test/--no-self-test",
    default=True,
    help="Whether to try the package on the example inputs.  [default: self-test]",
)
@click.option("--package", default=PACKAGE, show_default=True, help="Where to save the object.")
@click.option("--resource", default=RESOURCE, show_default=True, help="What to call it there.")
@click.option("--dry-run", is_flag=True, help="Decide and report, write nothing.")
@click.option("--debug", is_flag=True, help="Show import chains, and tracebacks of your own code.")
@click.option("-q", "--quiet", is_flag=True, help="Print warnings and problems only.")
@click.pass_context
def export_command(
    ctx: click.Context,
    /,
    target: str | None,
    output: str | None,
    example_inputs: str | None,
    self_test: bool,
    package: str,
    resource: str,
    dry_run: bool,
    debug: bool,
    quiet: bool,
    as_json: bool,
    **_: object,
) -> bool:
    """Package a model with the code that it needs.

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
    from modpack.cli._target import build, importable, packaging, parse_target
    from modpack.core.names import resource_record

    try:
        resource_record(package, resource)
    except ValueError as failure:
        raise click.UsageError(str(failure), ctx) from failure
    choices = read_choices(ctx, target)
    output = None if dry_run else output if output is not None else choices.output
    if output is None and not dry_run:
        raise click.UsageError(
            "there is no --output, neither here nor in [tool.modpack]. --dry-run writes nothing",
            ctx,
        )
    example = None if example_inputs is None else parse_target(example_inputs, Path.cwd())
    source = choices.target
    with (
        collected_warnings() as collected,
        importable(source.folder),
        exporting(choices, output, self_test) as exporter,
    ):
        model = build(source, debug)
        inputs = None if example is None else _built_inputs(example, model, debug)
        with working(f"Packaging {source.text}"):
            with packaging(source, debug):
                if inputs is None:
                    exporter.save_pickle(package, resource, model)
                else:
                    exporter.save_model(package, resource, model, example_inputs=inputs)
            plan, is_refused = finished(exporter)
    warn_beyond(plan, collected)
    written = None if is_refused else output
    if as_json:
        _report_json(plan, written)
        return is_refused
    for note in plan.warnings() if quiet else ():
        warn(str(note))
    if is_refused:
        from modpack.report.text import problems_report

        show(problems_report(plan.problems, debug, Path.cwd()))
        chains = "" if debug else " --debug shows who imports each of them."
        click.echo(f"Nothing was written.{chains}", err=True)
    elif not quiet:
        _report_text(plan, written)
    return is_refused


def _built_inputs(example: Target, model: object, debug: bool) -> object:
    from modpack.cli._target import build, importable
    from modpack.selftest.reference import as_example

    with importable(example.folder):
        inputs = build(example, debug)
    try:
        as_example(model, inputs, None)
    except (TypeError, ValueError) as failure:
        raise click.UsageError(f"--example-inputs {example.text}: {failure}") from failure
    return inputs


def _report_json(plan: Plan, written: str | None) -> None:
    from modpack.report.facts import plan_facts
    from modpack.report.json_output import package_document, plan_document
    from modpack.report.package_info import package_facts

    if written is None:
        write_json(plan_document(plan_facts(plan)))
    else:
        write_json(package_document(package_facts(written)))


def _report_text(plan: Plan, written: str | None) -> None:
    from modpack.report.facts import plan_facts
    from modpack.report.package_info import package_facts
    from modpack.report.text import package_report, plan_report

    if written is None:
        show(plan_report(plan_facts(plan), Path.cwd()))
        click.echo("Nothing was written: this was a dry run.", err=True)
        return
    show(package_report(package_facts(written)))
    mocks = sorted({use.module for use in plan.mock_uses if use.is_reachable})
    if mocks:
        more = f" and {len(mocks) - 3} more" if len(mocks) > 3 else ""
        click.echo(
            f"What is mocked of {', '.join(mocks[:3])}{more} may be called, and will raise "
            f"NotImplementedError then; modpack audit {written} tells where.",
            err=True,
        )
