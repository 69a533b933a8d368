"""``modpack requirements``: print the distributions that a package requires."""

from __future__ import annotations

from dataclasses import replace

import click

from modpack.cli._command import command
from modpack.cli._options import PACKAGE
from modpack.cli._output import show, write, write_json


@command(
    "requirements",
    epilog="Exit status: 0 on success, 1 if --check finds differences, 2 if the package cannot be "
    "read.",
)
@click.argument("file", metavar="FILE", type=PACKAGE)
@click.option(
    "--lock",
    is_flag=True,
    help="Include indirect requirements.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Compare with the installed distributions, and show the command that fixes differences.",
)
@click.option(
    "--exact",
    is_flag=True,
    help="With --check: report every difference, as loading with on_mismatch='error' does.",
)
def requirements_command(file: str, lock: bool, check: bool, exact: bool, as_json: bool) -> bool:
    """Print a requirements file for loading a package.

    The file lists torch, modpack, and the distributions of extern modules, in their versions at
    export. Optional distributions come last, below a comment. Distributions that pip cannot install
    are listed as comments. modpack reads FILE without executing or unpickling anything in it.

    \b
    Examples:
      modpack requirements model.modpack > requirements.txt
      modpack requirements model.modpack --lock
      modpack requirements model.modpack --check
    """
    if exact and not check:
        raise click.UsageError("--exact requires --check.")
    from modpack.report.requirements import requirements_of, requirements_text

    requirements = requirements_of(file, lock=lock, check=check)
    comparison = requirements.comparison
    if comparison is None:
        write_json(requirements) if as_json else write(requirements_text(requirements))
        return False
    relevant = comparison.deviations if exact else comparison.differences
    if as_json:
        write_json(replace(requirements, passed=not relevant))
    else:
        from modpack.core.environment import pip_install_command
        from modpack.report.text import comparison_report

        show(comparison_report(comparison, exact))
        repair = pip_install_command(relevant)
        if repair is not None:
            write(f"Run: {repair}\n")  # never wrapped, for copying
    return bool(relevant)
