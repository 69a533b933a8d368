"""``modpack report``: the audit of a package as one HTML page."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modpack.cli._common import (
    FILE,
    command,
    needing_extra,
    refuse_same,
    write_file,
    write_json,
)
from modpack.core.text import counted
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.report.audit_facts import AuditFacts


@command(
    "report",
    epilog="Exit status: 0 if the page was written, 2 if it could not be.",
    json_help="Tell what was written as JSON.",
)
@click.argument("file", metavar="FILE", type=FILE)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Where to write the page.  [default: the package's name with .html, in this folder]",
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option(
    "--sources/--no-sources",
    default=True,
    help="Whether the page has the packaged sources.  [default: sources]",
)
@click.option(
    "--all-sources",
    is_flag=True,
    help="Keep every packaged source, however large the page becomes. By default, it has those "
    "nearest to the model, and stays small.",
)
def report_command(
    file: str,
    output: str | None,
    force: bool,
    sources: bool,
    all_sources: bool,
    as_json: bool,
) -> None:
    """Write the audit of a package as one HTML page.

    FILE is a package, or the folder of an unzipped one; modpack's or torch.package's. Nothing
    in it is run or unpickled. The page has the graph of the modules, each with its source and the
    imports that lead to it; the mocks with their risks, the hooks, the environment beside the
    present one, the sizes. It is a single file that asks no network for anything.

    This needs an extra: pip install 'modpack[report]'

    \b
    Examples:
      modpack report model.modpack
      modpack report model.modpack -o audit.html --force
    """
    name = Path(file).resolve().name.removesuffix(".modpack")
    page = Path(output if output is not None else f"{name}.html")
    if all_sources and not sources:
        raise click.UsageError("--all-sources and --no-sources contradict each other")
    _check(file, page, force)
    with working(f"Reading {file}"):
        audit, text, left_out = _made(file, sources, all_sources)
    write_file(page, text)
    if as_json:
        found = Counter(finding.severity.value for finding in audit.findings)
        write_json(
            {
                "file": audit.subject,
                "page": str(page),
                "size_bytes": len(text.encode()),
                "modules": len(audit.modules),
                "findings": {
                    severity: found[severity] for severity in ("error", "warning", "info")
                },
            }
        )
        return
    click.echo(f"Wrote {page}", err=True)
    if left_out:
        click.echo(
            "It has the sources nearest to the model, and no room for "
            f"{counted(left_out, 'other')}: --all-sources keeps them.",
            err=True,
        )


def _check(file: str, page: Path, force: bool) -> None:
    """Refuse what cannot be written, or would destroy something, before any work is done."""
    if not page.parent.is_dir():
        raise click.UsageError(f"there is no folder {page.parent}: make it, or name another")
    if page.is_dir():
        raise click.UsageError(f"{page} is a folder: name a file with --output")
    refuse_same(file, page)
    if page.is_file() and not force:
        raise click.UsageError(
            f"{page} is there already: --force replaces it, --output names another"
        )


def _made(file: str, with_sources: bool, with_all: bool) -> tuple[AuditFacts, str, int]:
    """The audit, its page, and how many sources the page has no room for."""
    with needing_extra("report", "jinja2 3.1", ("jinja2", "markupsafe")):
        from modpack.report.html import html_report
    from modpack.report.audit import audit_package
    from modpack.report.html_document import PackagedSources, nearest_sources, read_sources
    from modpack.report.requirements import requirements_of

    audit = audit_package(file)
    sources = read_sources(file, audit.modules) if with_sources else PackagedSources()
    shown = sources if with_all else nearest_sources(sources, audit)
    text = html_report(audit, shown, requirements_of(file).comparison)
    return audit, text, len(sources.texts) - len(shown.texts)
