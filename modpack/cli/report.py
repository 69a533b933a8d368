"""``modpack report``: write the audit of a package as an HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from modpack.cli._command import command, require_extra
from modpack.cli._options import FILE, PACKAGE, key_option
from modpack.cli._output import require_other_file, write_file
from modpack.core.names import file_name, url_of
from modpack.core.text import counted
from modpack.report.progress import working


@command(
    "report",
    epilog="Exit status: 0 if the page was written, 2 if not.",
    has_json=False,
)
@click.argument("file", metavar="FILE", type=PACKAGE)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=FILE,
    help="Write the page to FILE.  [default: the package's name with .html, in this folder]",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option(
    "--sources/--no-sources",
    default=True,
    help="Include the packaged sources in the page.  [default: sources]",
)
@click.option(
    "--all-sources",
    is_flag=True,
    help="Include every packaged source. By default, the page includes those nearest to the model, "
    "up to 600 kB.",
)
@key_option
def report_command(
    file: str,
    output: str | None,
    force: bool,
    sources: bool,
    all_sources: bool,
    keys: tuple[str, ...],
) -> None:
    """Write an audit report as a single HTML page.

    FILE is a package written by modpack or torch.package, or the folder of an unzipped one.
    modpack reads it without executing or unpickling anything in it.

    The page starts with a verdict: signature, digests, code, mocks, licenses, and self-test. It
    shows the module graph with sources and import chains, mocks and their risks, hooks, and a
    comparison of the recorded environment with this one. It loads nothing from the network.

    Requires an extra: pip install 'modpack[report]'

    \b
    Examples:
      modpack report model.modpack
      modpack report model.modpack -o audit.html --force
      modpack report model.modpack --key team.pub
    """
    # The name of '.' is that of its folder.
    own = file if url_of(file) is not None else str(Path(file).resolve())
    name = file_name(own).removesuffix(".modpack")
    page = Path(output if output is not None else f"{name}.html")
    if all_sources and not sources:
        raise click.UsageError("--all-sources and --no-sources cannot be combined.")
    # The path is checked before any work is done.
    if not page.parent.is_dir():
        raise click.UsageError(f"{page.parent}: the folder does not exist. Create it first.")
    if page.is_dir():
        raise click.UsageError(f"{page} is a folder. Pass a file with --output.")
    require_other_file(file, page)
    if page.is_file() and not force:
        raise click.UsageError(
            f"{page}: the file exists. Pass --force to replace it, or another --output."
        )
    with require_extra("report", "jinja2 3.1", ("jinja2", "markupsafe")):
        from modpack.report.html import html_report
    from modpack.archive.reader import open_archive
    from modpack.report.audit import audit_package
    from modpack.report.html_document import ROOM, PackagedSources, read_sources
    from modpack.report.requirements import requirements_of
    from modpack.report.verify import verify_package
    from modpack.security.signing_keys import read_public

    with working(f"Reading {file}"), open_archive(file) as archive:
        signers = tuple(map(read_public, keys))
        audit, shown = audit_package(archive, signers), PackagedSources()
        if sources:
            shown = read_sources(archive, audit, None if all_sources else ROOM)
        comparison = requirements_of(archive, check=True).comparison
        # Tensors of a remote package would have to be downloaded.
        is_remote = url_of(file) is not None
        verification = verify_package(archive, keys=signers, only_code=is_remote)
        text = html_report(audit, shown, comparison, verification)
    write_file(page, text)
    click.echo(f"Wrote {page}", err=True)
    if shown.too_many:
        click.echo(
            f"The page omits {counted(shown.too_many, 'source')}. "
            "Pass --all-sources to include all.",
            err=True,
        )
