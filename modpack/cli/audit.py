"""``modpack audit``: what is in a package or a plan, what is mocked, and whether it will hurt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from modpack.cli._common import FILE, command, show, write_json
from modpack.cli._planning import RulesCommand, plan_target, planning_options, read_choices
from modpack.report.progress import working

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from modpack.report.audit import Gate
    from modpack.report.audit_facts import AuditFacts

_OF_A_TARGET = (
    *("intern", "extern", "mock", "deny", "preset", "intern_native", "allow_secrets_in"),
    *("config", "debug"),
)


def _gates(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[Gate]:
    """The callback of ``--fail-on``."""
    from modpack.report.audit import parse_gate

    words = [word.strip() for value in values for word in value.split(",")]
    try:
        return [parse_gate(word) for word in dict.fromkeys(words)]
    except ValueError as failure:
        raise click.BadParameter(str(failure), ctx, parameter) from failure


def _complete_code(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer the codes of findings, behind a comma too."""
    from click.shell_completion import CompletionItem

    from modpack.report.findings import CODES, Severity

    before, comma, begun = incomplete.rpartition(",")
    words = [*CODES, *(severity.value for severity in Severity), "license:"]
    offered = [word for word in dict.fromkeys(words) if word.startswith(begun)]
    return [CompletionItem(f"{before}{comma}{word}") for word in offered]


@command(
    "audit",
    cls=RulesCommand,
    epilog="Exit status: 0 if the audit passes; 1 if there are problems or errors, or a gate of "
    "--fail-on fires; 2 if FILE could not be read or TARGET not be built.",
)
@click.argument("subject", metavar="[TARGET|FILE]", required=False, type=FILE)
@click.option(
    "--fail-on",
    "gates",
    metavar="CODE",
    multiple=True,
    callback=_gates,
    shell_complete=_complete_code,
    help="What else fails the audit. May be repeated, or take several separated by commas.",
)
@planning_options
@click.option("--debug", is_flag=True, help="Show tracebacks of your own code.")
@click.pass_context
def audit_command(
    ctx: click.Context, /, subject: str | None, gates: list[Gate], as_json: bool, **_: object
) -> bool:
    """Tell what is in a package, what is mocked, who needs it, and whether it will hurt.

    FILE is a package, or the folder of an unzipped one; modpack's or torch.package's. Nothing
    in it is run or unpickled. TARGET is MODULE:ATTR or FILE.py:ATTR, as for modpack export: it
    is built and planned with the same rules, and nothing is written. Without either, the target
    of pyproject.toml is planned.

    Errors fail the audit. What else does, --fail-on says: a code of a finding (mock-reachable);
    a severity, for all findings that are at least as bad (warning); or license: and a glob
    (license:GPL*).

    \b
    Examples:
      modpack audit model.modpack
      modpack audit model.modpack --fail-on mock-reachable,extern-unpinned --fail-on 'license:GPL*'
      modpack audit train.py:make_model --mock 'wandb.**'
    """
    from modpack.report.audit import judge

    audit = _audit(ctx, subject)
    verdict = judge(audit, gates)
    if as_json:
        from modpack.report.json_output import audit_document

        write_json(audit_document(audit, gates, verdict))
    else:
        from modpack.report.audit_text import audit_report

        show(audit_report(audit, verdict, Path.cwd()))
    return not verdict.passed


def _audit(ctx: click.Context, subject: str | None) -> AuditFacts:
    from modpack.report.audit import audit_package, audit_plan

    if subject is None or (":" in subject and not Path(subject).exists()):
        choices = read_choices(ctx, subject)
        return audit_plan(choices.target.text, plan_target(choices))
    for name in _OF_A_TARGET:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(
                f"{option} goes with a TARGET: what is in {subject!r} has been decided", ctx
            )
    if not Path(subject).exists():
        raise click.UsageError(
            f"there is no file {subject!r}. A TARGET has a colon: MODULE:ATTR or FILE.py:ATTR", ctx
        )
    with working(f"Reading {subject}"):
        return audit_package(subject)
