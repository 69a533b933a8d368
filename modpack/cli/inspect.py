"""``modpack inspect``: what a package holds, read without running anything in it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from modpack.cli._common import FILE, command, complete_module, show, write, write_json

if TYPE_CHECKING:
    from modpack.archive.base import Archive


@command("inspect", epilog="Exit status: 0 if the package could be read, 2 if not.")
@click.argument("file", metavar="FILE", type=FILE)
@click.option("--tree", "tree", is_flag=True, help="Show the package's files as a tree instead.")
@click.option(
    "--source",
    metavar="MODULE",
    shell_complete=complete_module,
    help="Print the source of a packaged module instead, as it is.",
)
@click.option("--notes", "notes", is_flag=True, help="Show all notes, and nothing else.")
def inspect_command(file: str, tree: bool, source: str | None, notes: bool, as_json: bool) -> None:
    """Show what a package holds, and why.

    FILE is a package, or the folder of an unzipped one; modpack's or torch.package's. Nothing
    in it is run or unpickled, so that a package of unknown origin can be looked at.

    \b
    Examples:
      modpack inspect model.modpack
      modpack inspect model.modpack --source mylib.net
      modpack inspect model.modpack --notes
      modpack inspect model.modpack --json | jq '.modules[] | select(.action == "intern")'
    """
    if [tree, source is not None, notes].count(True) > 1:
        raise click.UsageError("--tree, --source and --notes exclude each other: give one of them")
    if tree:
        _show_tree(file, as_json)
    elif source is not None:
        _show_source(file, source, as_json)
    else:
        _show_facts(file, notes, as_json)


def _show_facts(file: str, only_notes: bool, as_json: bool) -> None:
    from modpack.report.package_info import package_facts

    facts = package_facts(file)
    if as_json:
        from modpack.report.json_output import package_document, report_json

        notes = {"notes": report_json(facts.notes)}
        write_json(notes if only_notes else package_document(facts))
    else:
        from modpack.report.text import notes_report, package_report

        show(notes_report(facts) if only_notes else package_report(facts))


def _show_tree(file: str, as_json: bool) -> None:
    from modpack.archive.reader import open_archive
    from modpack.core.names import Directory
    from modpack.core.text import printable

    with open_archive(file) as archive:
        sizes = {name: archive.size(name) for name in archive.names()}
    if as_json:
        records = [{"record": name, "size_bytes": size} for name, size in sizes.items()]
        write_json({"records": records})
    else:
        write(printable(str(Directory.of(file, sizes)), keep="\n") + "\n")


def _show_source(file: str, module: str, as_json: bool) -> None:
    from modpack.archive.manifest import read_manifest
    from modpack.archive.reader import open_archive
    from modpack.core.text import printable

    with open_archive(file) as archive:
        record = _record_of(archive, module)
        content = archive.read(record, verify=read_manifest(archive))
    if as_json:
        text = _decoded(file, record, content)
        write_json({"module": module, "record": record, "source": text})
    elif sys.stdout.isatty():
        write(printable(_decoded(file, record, content), keep="\n\t"))
    else:
        write(content)


def _record_of(archive: Archive, module: str) -> str:
    from modpack.core.names import module_record, require_module_name
    from modpack.errors import ModpackError

    try:
        require_module_name(module, "--source")
    except ValueError as failure:
        raise click.UsageError(str(failure)) from failure
    package, plain = module_record(module, True), module_record(module, False)
    if archive.has(package) or archive.has(plain):
        return package if archive.has(package) else plain
    raise ModpackError(f"{archive.path} holds no source of {module!r}: {_why_not(archive, module)}")


def _why_not(archive: Archive, module: str) -> str:
    """Why there is no source of a module, and which modules have one."""
    from modpack.core.names import similar_modules
    from modpack.core.rules import Action
    from modpack.report.package_info import facts_of, read_checked_manifest

    modules = {
        facts.module: facts for facts in facts_of(archive, read_checked_manifest(archive)).modules
    }
    if module not in modules:
        have = [name for name, facts in modules.items() if (facts.record or "").endswith(".py")]
        close = similar_modules(module, have)
        hint = f". Did you mean {' or '.join(map(repr, close))}?" if close else ""
        return f"it neither holds nor needs such a module{hint}"
    facts = modules[module]
    if facts.action is Action.EXTERN:
        return "it is extern, so that it comes from where the package is loaded"
    return f"it is compiled code: {facts.record!r}" if facts.record else "it is a folder of modules"


def _decoded(file: str, record: str, content: bytes) -> str:
    from importlib.util import decode_source

    from modpack.errors import ArchiveError

    try:
        return decode_source(content)
    except (SyntaxError, UnicodeError, LookupError) as failure:  # codecs raise them all
        raise ArchiveError(file, f"it is no source text: {failure}", record) from failure
