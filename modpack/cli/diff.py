"""``modpack diff``: how two packages differ, read without running anything in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from modpack.cli._common import FILE, command, make_console, write, write_json
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.report.diff_text import SafeLine


@command(
    "diff",
    epilog="Exit status: 0 if nothing differs, 1 if something does, 2 if A or B cannot be read.",
)
@click.argument("before", metavar="A", type=FILE)
@click.argument("after", metavar="B", type=FILE)
@click.option(
    "--source/--no-source",
    "source",
    default=None,
    help="Show the lines that differ of all sources, or of none.",
)
@click.option("--stat", "stat", is_flag=True, help="Count only.")
def diff_command(before: str, after: str, source: bool | None, stat: bool, as_json: bool) -> bool:
    """Show how two packages differ.

    A and B are packages, or the folders of unzipped ones; modpack's or torch.package's. Nothing
    in them is run or unpickled.

    Compared are the modules with their decisions and sources, the distributions that they belong
    to, hooks, parameters and buffers by their digests, resources, self-tests and notes. Sources are
    compared line by line where the version of their distribution is the same on both sides;
    --source compares all of them, --no-source none.

    \b
    Examples:
      modpack diff old.modpack new.modpack
      modpack diff old.modpack new.modpack --stat
      modpack diff old.modpack new.modpack --json | jq '.tensors[].name'
    """
    from modpack.report.diff import compare_packages
    from modpack.report.diff_facts import SourceChoice

    if stat and as_json:
        raise click.UsageError("--stat and --json exclude each other: give one of them")
    chosen = {None: SourceChoice.OWN, True: SourceChoice.ALL, False: SourceChoice.NONE}
    with working(f"Comparing {before} and {after}"):
        found = compare_packages(before, after, chosen[source])
    if as_json:
        from modpack.report.json_output import document

        write_json(document(found))
    else:
        from modpack.report.diff_text import differences_lines, statistics_lines

        _show(statistics_lines(found) if stat else differences_lines(found))
    return not found.are_none


def _show(lines: Iterable[SafeLine]) -> None:
    """Write lines, colored at a terminal only, and never folded: a diff is to be copied."""
    console = make_console()
    if not console.is_terminal or console.no_color:
        write("".join(f"{line.text}\n" for line in lines))
        return
    from rich.text import Text

    with console.capture() as captured:
        for line in lines:
            console.print(Text(line.text, line.style), soft_wrap=True)
    write(captured.get())
