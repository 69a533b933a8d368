"""``modpack audit``: report the contents, mocks, and risks of a package."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from modpack.cli._command import command
from modpack.cli._options import PACKAGE, key_option
from modpack.cli._output import show, write_json
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.report.audit import Gate


def _gates(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[Gate]:
    """Parse the values of ``--fail-on``."""
    from modpack.report.audit import parse_gate

    # A gate that is given twice would report its findings twice.
    words = [word.strip() for value in values for word in value.split(",")]
    try:
        return [parse_gate(word) for word in dict.fromkeys(words)]
    except ValueError as failure:
        raise click.BadParameter(str(failure), ctx, parameter) from failure


@command(
    "audit",
    epilog="Exit status: 0 if the audit passes, 1 if it finds an error or a match of --fail-on, 2 "
    "if the package cannot be read.",
)
@click.argument("file", metavar="FILE", type=PACKAGE)
@click.option(
    "--fail-on",
    "gates",
    metavar="CODE",
    multiple=True,
    callback=_gates,
    help="Fail on findings with this code, severity, or license. Repeatable; accepts a "
    "comma-separated list.",
)
@key_option
def audit_command(file: str, gates: list[Gate], keys: tuple[str, ...], as_json: bool) -> bool:
    """Report a package's contents, mocks, and portability risks.

    FILE is a package written by modpack or torch.package, or the folder of an unzipped one.
    modpack reads it without executing or unpickling anything in it.

    Errors fail the audit. --fail-on adds a code (mock-not-observed), a severity and everything
    above it (warning), or a license pattern (license:GPL*).

    A package records what its self-test observed. Use --key to check that you know the signer: no
    gate passes on observations of mocks whose signature was not checked.

    \b
    Examples:
      modpack audit model.modpack
      modpack audit model.modpack --fail-on extern-unpinned --fail-on 'license:GPL*'
      modpack audit model.modpack --fail-on mock-not-observed --key team.pub
    """
    from modpack.report.audit import audit_package, judge
    from modpack.security.signing_keys import read_public

    with working(f"Reading {file}"):
        audit = judge(audit_package(file, tuple(map(read_public, keys))), gates)
    if as_json:
        write_json(audit)
    else:
        from modpack.report.audit_text import audit_report

        show(audit_report(audit))
    return not audit.passed
