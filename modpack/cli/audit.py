"""``modpack audit``: what is in a package or a plan, what is mocked, and whether it will hurt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from modpack.cli._common import FINDINGS, complete_code, complete_file, failing_clearly, show, write
from modpack.cli._dry_run import planning_options
from modpack.cli._target import RulesCommand
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.report.audit import Gate
    from modpack.report.audit_facts import AuditFacts

_OF_A_TARGET = (
    *("intern", "extern", "mock", "deny", "policy", "intern_native", "allow_secrets"),
    *("config", "debug"),
)


_HELP = """\
Tell what is in a package, what is mocked, who needs it, and whether it will hurt.

FILE is a package, or the folder of an unzipped one; modpack's or torch.package's. Nothing
in it is run or unpickled. TARGET is MODULE:ATTR or FILE.py:ATTR, as for modpack export: it
is built and planned with the same rules, and nothing is written. Without either, the target
of pyproject.toml is planned.

Errors fail the audit. What else does, --fail-on says: a code of a finding (mock-reachable);
a severity, for all findings that are at least as bad (warning); or licence: and a glob
(licence:GPL*).

\b
Examples:
  modpack audit model.modpack
  modpack audit model.modpack --fail-on mock-reachable,extern-unpinned --fail-on 'licence:GPL*'
  modpack audit train.py:make_model --mock 'wandb.**'
"""


def _gates(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[Gate]:
    """The callback of ``--fail-on``."""
    from modpack.report.audit import parse_gate

    words = [word.strip() for value in values for word in value.split(",")]
    try:
        return [parse_gate(word) for word in dict.fromkeys(words)]
    except ValueError as failure:
        raise click.BadParameter(str(failure), ctx, parameter) from failure


@click.command(
    "audit",
    cls=RulesCommand,
    help=_HELP,
    epilog="Exit status: 0 if the audit passes; 1 if there are problems or errors, or a gate of "
    "--fail-on fires; 2 if FILE could not be read or TARGET not be built.",
)
@click.argument("subject", metavar="[TARGET|FILE]", required=False, shell_complete=complete_file)
@click.option(
    "--fail-on",
    "gates",
    metavar="CODE",
    multiple=True,
    callback=_gates,
    shell_complete=complete_code,
    help="What else fails the audit. May be repeated, or take several separated by commas.",
)
@planning_options
@click.option("--debug", is_flag=True, help="Show tracebacks of your own code.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def audit_command(
    ctx: click.Context, /, subject: str | None, gates: list[Gate], as_json: bool, **_: object
) -> None:
    """Tell what is in a package, what is mocked, who needs it, and whether it will hurt."""
    with failing_clearly(as_json):
        audit = _audit(ctx, subject)
        has_passed = _report(audit, gates, as_json)
    ctx.exit(0 if has_passed else FINDINGS)


def _audit(ctx: click.Context, subject: str | None) -> AuditFacts:
    if subject is not None and _is_file(subject):
        return _audit_file(ctx, subject)
    from modpack.cli._dry_run import chosen_settings, plan_target, read_choices
    from modpack.report.audit import audit_plan

    choices = read_choices(ctx, subject, chosen_settings(ctx))
    return audit_plan(choices.target.text, plan_target(choices))


def _is_file(subject: str) -> bool:
    """Whether a package is meant: something that is there, or cannot be a target."""
    return Path(subject).exists() or ":" not in subject


def _audit_file(ctx: click.Context, file: str) -> AuditFacts:
    from modpack.report.audit import audit_package

    given = [name for name in _OF_A_TARGET if _is_given(ctx, name)]
    if given:
        option = f"--{given[0].replace('_', '-').replace('-secrets', '-secret')}"
        raise click.UsageError(
            f"{option} goes with a TARGET: what is in {file!r} has been decided", ctx
        )
    if not Path(file).exists():
        raise click.UsageError(
            f"there is no file {file!r}. A TARGET has a colon: MODULE:ATTR or FILE.py:ATTR", ctx
        )
    with working(f"Reading {file}"):
        return audit_package(file)


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _report(audit: AuditFacts, gates: list[Gate], as_json: bool) -> bool:
    from modpack.report.audit import judge

    verdict = judge(audit, gates)
    if as_json:
        from modpack.report.json_output import audit_document, dumps

        write(dumps(audit_document(audit, gates, verdict)))
    else:
        from modpack.report.audit_text import audit_report

        show(audit_report(audit, verdict, Path.cwd()))
    return verdict.passed
