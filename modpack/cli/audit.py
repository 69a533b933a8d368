"""``modpack audit``: report the contents, mocks, and risks of a package or a plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from modpack.cli._command import command
from modpack.cli._options import PACKAGE, key_option
from modpack.cli._output import show, write_json
from modpack.cli._planning import RulesCommand, package_target, planning_options, read_plan_options
from modpack.core.names import url_of
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.report.audit import Gate
    from modpack.report.audit_facts import AuditFacts

_TARGET_OPTIONS = (
    *("intern", "extern", "mock", "deny", "preset", "intern_native", "allow_secrets_in"),
    *("config", "debug"),
)


def _gates(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[Gate]:
    """Parse the values of ``--fail-on``."""
    from modpack.report.audit import parse_gate

    words = [word.strip() for value in values for word in value.split(",")]
    try:
        return [parse_gate(word) for word in dict.fromkeys(words)]
    except ValueError as failure:
        raise click.BadParameter(str(failure), ctx, parameter) from failure


def _list_codes(ctx: click.Context, parameter: click.Parameter, is_given: bool) -> None:
    """Print the codes of findings and exit, if ``--list-codes`` is given."""
    if not is_given or ctx.resilient_parsing:
        return
    from modpack.diagnostics import diagnostic_codes
    from modpack.report.format import table

    rows = table(("bold", "left"), ("", "left"), ("", "left"))
    for code in diagnostic_codes("audit").values():
        rows.add_row(code.code, code.severity.value, code.meaning)
    show(rows)
    ctx.exit()


@command(
    "audit",
    cls=RulesCommand,
    epilog="Exit status: 0 if the audit passes; 1 if it finds a problem, an error, or a match of "
    "--fail-on; 2 if the package cannot be read or the model cannot be built.",
)
@click.argument("subject", metavar="[MODEL_OR_PACKAGE]", required=False, type=PACKAGE)
@click.option(
    "--fail-on",
    "gates",
    metavar="CODE",
    multiple=True,
    callback=_gates,
    help="Fail on findings with this code, severity, or license. Repeatable; accepts a "
    "comma-separated list.",
)
@click.option(
    "--list-codes",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_codes,
    help="List all codes of findings with their meanings.",
)
@key_option
@planning_options
@click.pass_context
def audit_command(
    ctx: click.Context,
    /,
    subject: str | None,
    gates: list[Gate],
    keys: tuple[str, ...],
    as_json: bool,
    **_: object,
) -> bool:
    """Report a package's contents, mocks, and portability risks.

    A package is a file written by modpack or torch.package, or the folder of an unzipped one.
    modpack reads it without executing or unpickling anything in it.

    A model is MODULE:ATTR or FILE.py:ATTR, as for modpack export. modpack builds it, plans its
    package with the same rules, and writes nothing. Without an argument, modpack plans the target
    in pyproject.toml.

    Errors and problems fail the audit. --fail-on adds a code (mock-not-observed), a severity and
    everything above it (warning), or a license pattern (license:GPL*).

    A package records what its self-test observed. Use --key to check that you know the signer: no
    gate passes on observations of mocks whose signature was not checked.

    \b
    Examples:
      modpack audit model.modpack
      modpack audit model.modpack --fail-on extern-unpinned --fail-on 'license:GPL*'
      modpack audit model.modpack --fail-on mock-not-observed --key team.pub
      modpack audit train.py:make_model --mock 'wandb.**'
      modpack audit --list-codes
    """
    from modpack.report.audit import judge

    audit = judge(_audit(ctx, subject, keys), gates)
    if as_json:
        write_json(audit)
    else:
        from modpack.report.audit_text import audit_report

        show(audit_report(audit, Path.cwd()))
    return not audit.passed


def _audit(ctx: click.Context, subject: str | None, keys: Sequence[str]) -> AuditFacts:
    from modpack.report.audit import audit_package, audit_plan
    from modpack.security.signing_keys import read_public

    is_package = subject is not None and (Path(subject).exists() or url_of(subject) is not None)
    if subject is None or (":" in subject and not is_package):
        if keys:
            raise click.UsageError("--key applies to a package, not to a model.", ctx)
        options = read_plan_options(ctx, subject)
        plan, _ = package_target(options)
        return audit_plan(options.target.text, plan)
    if not is_package:
        raise click.UsageError(
            f"{subject}: the file does not exist. A model has the form MODULE:ATTR or "
            "FILE.py:ATTR.",
            ctx,
        )
    for name in _TARGET_OPTIONS:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(
                f"{option} applies to a model (MODULE:ATTR or FILE.py:ATTR), but {subject!r} is a "
                "package. Remove the option.",
                ctx,
            )
    with working(f"Reading {subject}"):
        return audit_package(subject, tuple(map(read_public, keys)))
