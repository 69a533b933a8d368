"""``modpack inspect``: show the contents of a package without executing it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from modpack.cli._command import command
from modpack.cli._options import PACKAGE
from modpack.cli._output import show, write, write_json
from modpack.core.names import Directory, module_record, require_module_name
from modpack.core.text import printable
from modpack.errors import ModpackError

if TYPE_CHECKING:
    from modpack.archive.base import Archive


@command("inspect", epilog="Exit status: 0 if the package was read, 2 if not.")
@click.argument("file", metavar="FILE", type=PACKAGE)
@click.option("--tree", "tree", is_flag=True, help="Show the records as a tree.")
@click.option(
    "--source",
    metavar="MODULE",
    help="Print the source of MODULE, unchanged.",
)
@click.option("--notes", "notes", is_flag=True, help="Show all notes and nothing else.")
def inspect_command(file: str, tree: bool, source: str | None, notes: bool, as_json: bool) -> None:
    """Show a package's contents and the rules that applied.

    FILE is a package written by modpack or torch.package, or the folder of an unzipped one.
    modpack reads it without executing or unpickling anything in it, so inspecting an untrusted
    package is safe.

    \b
    Examples:
      modpack inspect model.modpack
      modpack inspect model.modpack --source mylib.net
      modpack inspect model.modpack --notes
      modpack inspect model.modpack --json | jq '.modules[] | select(.action == "intern")'
    """
    if [tree, source is not None, notes, as_json].count(True) > 1:
        raise click.UsageError("--tree, --source, --notes, and --json cannot be combined.")
    if tree:
        from modpack.archive.reader import open_archive

        with open_archive(file) as archive:
            records = Directory.from_names(file, archive.names())
        write(printable(str(records), keep="\n") + "\n")
        return
    if source is not None:
        _show_source(file, source)
        return
    from modpack.report.package_info import package_facts

    facts = package_facts(file)
    if as_json:
        from modpack.report.facts import PlanFacts

        write_json(PlanFacts.of_package(facts))
    else:
        from modpack.report.text import notes_report, package_report

        show(notes_report(facts) if notes else package_report(facts))


def _show_source(file: str, module: str) -> None:
    from importlib.util import decode_source

    from modpack.archive.manifest import read_manifest
    from modpack.archive.reader import open_archive

    with open_archive(file) as archive:
        record = _record_of(archive, module)
        content = archive.read(record, verify=read_manifest(archive))
    if sys.stdout.isatty():
        # A source may contain sequences that control the terminal. In a pipe, no byte changes.
        try:
            text = decode_source(content)
        except (SyntaxError, UnicodeError, LookupError):  # codecs raise any of these
            text = content.decode("utf-8", "replace")
        write(printable(text, keep="\n\t"))
    else:
        write(content)


def _record_of(archive: Archive, module: str) -> str:
    try:
        require_module_name(module, "--source")
    except ValueError as failure:
        raise click.UsageError(str(failure)) from failure
    for record in (module_record(module, True), module_record(module, False)):
        if archive.has(record):
            return record
    raise ModpackError(
        f"{archive.path}: the package has no source of module {module!r}",
        hint=f"Run: modpack why {archive.path} {module}",
    )
