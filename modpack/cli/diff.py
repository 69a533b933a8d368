"""``modpack diff``: compare two packages without executing them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from modpack.cli._command import command
from modpack.cli._options import PACKAGE
from modpack.cli._output import make_console, write, write_json
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.report.diff_text import SafeLine


@command(
    "diff",
    epilog="Exit status: 0 if the packages do not differ, 1 if they do, 2 if one cannot be read.",
)
@click.argument("before", metavar="A", type=PACKAGE)
@click.argument("after", metavar="B", type=PACKAGE)
@click.option(
    "--source/--no-source",
    "source",
    default=None,
    help="Show the differing lines of all sources, or of none.",
)
def diff_command(before: str, after: str, source: bool | None, as_json: bool) -> bool:
    """Compare two packages.

    A and B are packages written by modpack or torch.package, or the folders of unzipped ones.
    modpack reads them without executing or unpickling anything in them.

    The comparison covers modules with their decisions and sources, distributions, hooks,
    parameters and buffers (by digest), resources, self-tests, and notes. By default, modpack
    shows the differing lines of a source unless its distribution's version differs too.

    \b
    Examples:
      modpack diff old.modpack new.modpack
      modpack diff old.modpack new.modpack --no-source
      modpack diff old.modpack new.modpack --json | jq '.differences[] | select(.part == "tensor")'
    """
    from modpack.report.diff import compare_packages
    from modpack.report.diff_facts import SourceChoice

    chosen = {None: SourceChoice.OWN, True: SourceChoice.ALL, False: SourceChoice.NONE}
    with working(f"Comparing {before} and {after}"):
        found = compare_packages(before, after, chosen[source])
    if as_json:
        write_json(found)
    else:
        from modpack.report.diff_text import differences_lines

        _show(differences_lines(found))
    return not found.passed


def _show(lines: Iterable[SafeLine]) -> None:
    """Write lines with colors at a terminal only. Long lines are not wrapped, for copying."""
    console = make_console()
    # Without colors, rich adds nothing to the plain lines.
    if not console.is_terminal or console.no_color:
        write("".join(f"{line.text}\n" for line in lines))
        return
    from rich.text import Text

    with console.capture() as captured:
        for line in lines:
            console.print(Text(line.text, line.style), soft_wrap=True)
    write(captured.get())
