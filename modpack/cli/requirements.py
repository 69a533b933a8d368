"""``modpack requirements``: what must be installed where a package is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from modpack.cli._common import FINDINGS, complete_file, failing_clearly, show, write

if TYPE_CHECKING:
    from modpack.core.environment import EnvironmentComparison, EnvironmentRow
    from modpack.report.requirements import Requirements

_HELP = """\
Print what must be installed where a package is loaded.

The output is a requirements file: torch, modpack, and the distributions of extern modules, in the
versions with which the package was made. What loading can do without comes last, below a comment.
What pip cannot install again is a comment. Nothing in FILE is run or unpickled.

\b
Examples:
  modpack requirements model.modpack > requirements.txt
  modpack requirements model.modpack --lock
  modpack requirements model.modpack --check
"""


@click.command(
    "requirements",
    help=_HELP,
    epilog="Exit status: 0 if all is well, 1 if --check found differences, 2 if the package could "
    "not be read.",
)
@click.argument("file", metavar="FILE", shell_complete=complete_file)
@click.option(
    "--lock",
    is_flag=True,
    help="With all that these distributions require, and with hashes if they are known of all.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Compare with what is installed here instead, and tell the remedy.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="With --check: count differences that rarely matter as well, as loading does with strict.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def requirements_command(
    ctx: click.Context, file: str, lock: bool, check: bool, strict: bool, as_json: bool
) -> None:
    """Print what must be installed where a package is loaded."""
    with failing_clearly(as_json):
        if strict and not check:
            raise click.UsageError("--strict says how to compare: give --check as well")
        from modpack.report.requirements import requirements_of

        requirements = requirements_of(file, lock=lock)
        comparison = requirements.comparison
        counting = comparison.deviations if strict else comparison.differences
        if as_json:
            _show_json(requirements, check)
        elif check:
            _show_comparison(comparison, counting, strict)
        else:
            _show_text(requirements)
    ctx.exit(FINDINGS if check and counting else 0)


def _show_comparison(
    comparison: EnvironmentComparison, counting: tuple[EnvironmentRow, ...], strict: bool
) -> None:
    from modpack.core.environment import repair_command
    from modpack.report.text import comparison_report

    show(comparison_report(comparison, strict))
    repair = repair_command(counting)
    if repair is not None:
        write(f"Remedy: {repair}\n")  # in one line, however long, to be copied


def _show_text(requirements: Requirements) -> None:
    from modpack.report.requirements import requirements_text

    write(requirements_text(requirements))


def _show_json(requirements: Requirements, check: bool) -> None:
    from modpack.report.json_output import dumps
    from modpack.report.requirements import requirements_document

    write(dumps(requirements_document(requirements, check)))
