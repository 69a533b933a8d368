"""``modpack requirements``: what must be installed where a package is loaded."""

from __future__ import annotations

import click

from modpack.cli._common import FILE, command, show, write, write_json


@command(
    "requirements",
    epilog="Exit status: 0 if all is well, 1 if --check found differences, 2 if the package could "
    "not be read.",
)
@click.argument("file", metavar="FILE", type=FILE)
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
    "--exact",
    is_flag=True,
    help="With --check: report every difference, as loading with on_mismatch='error' does.",
)
def requirements_command(file: str, lock: bool, check: bool, exact: bool, as_json: bool) -> bool:
    """Print what must be installed where a package is loaded.

    The output is a requirements file: torch, modpack, and the distributions of extern modules, in
    the versions with which the package was made. What loading can do without comes last, below a
    comment. What pip cannot install again is a comment. Nothing in FILE is run or unpickled.

    \b
    Examples:
      modpack requirements model.modpack > requirements.txt
      modpack requirements model.modpack --lock
      modpack requirements model.modpack --check
    """
    if exact and not check:
        raise click.UsageError("--exact says how to compare: give --check as well")
    from modpack.report.requirements import requirements_of, requirements_text

    requirements = requirements_of(file, lock=lock)
    comparison = requirements.comparison
    counting = comparison.deviations if exact else comparison.differences
    if as_json:
        from modpack.report.json_output import document

        write_json(document(requirements, **({} if check else {"comparison": None})))
    elif check:
        from modpack.core.environment import pip_install_command
        from modpack.report.text import comparison_report

        show(comparison_report(comparison, exact))
        repair = pip_install_command(counting)
        if repair is not None:
            write(f"Remedy: {repair}\n")  # in one line, however long, to be copied
    else:
        write(requirements_text(requirements))
    return bool(check and counting)
