"""``modpack sbom``: the bill of materials of a package, in CycloneDX."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from modpack.cli._common import (
    FILE,
    command,
    needing_extra,
    refuse_same,
    write,
    write_file,
)
from modpack.report.progress import working

if TYPE_CHECKING:
    from datetime import datetime

Form = Literal["json", "xml"]


@command(
    "sbom",
    epilog="Exit status: 0 if the bill was made, 2 if not.",
    json_help="The same as --format json; tell errors as JSON too.",
)
@click.argument("file", metavar="FILE", type=FILE)
@click.option("-o", "--output", metavar="FILE", help="Write it there instead of to stdout.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "xml"]),
    help="In which form.  [default: xml if --output ends with .xml, else json]",
)
@click.option(
    "--timestamp",
    is_flag=True,
    help="Say in it when it was made: now, or at SOURCE_DATE_EPOCH if that is set.",
)
def sbom_command(
    file: str, output: str | None, form: Form | None, timestamp: bool, as_json: bool
) -> None:
    """Print the software bill of materials of a package (CycloneDX 1.6).

    FILE is a package, or the folder of an unzipped one; modpack's or torch.package's. Nothing
    in it is run or unpickled. The bill names the model, the distributions and the code in the
    package, and what must be installed where it is loaded, with versions, licenses and digests.

    The same package gives the same bill, byte for byte, unless --timestamp is given.

    This needs an extra: pip install 'modpack[sbom]'

    \b
    Examples:
      modpack sbom model.modpack
      modpack sbom model.modpack -o model.cdx.json
      modpack sbom model.modpack -o model.cdx.xml --timestamp
    """
    if as_json and form == "xml":
        raise click.UsageError("--json and --format xml exclude each other: give one of them")
    if output is not None:
        refuse_same(file, Path(output))
    default: Form = "xml" if output is not None and output.lower().endswith(".xml") else "json"
    made_at = _time() if timestamp else None
    with working(f"Reading {file}"):
        text = _sbom(file, "json" if as_json else form or default, made_at)
    if output is None:
        write(text)
    else:
        write_file(Path(output), text)


def _sbom(file: str, form: Form, timestamp: datetime | None) -> str:
    from modpack.archive.reader import open_archive
    from modpack.report.audit import audit_package

    with needing_extra("sbom", "cyclonedx-python-lib 9", ("cyclonedx", "packageurl")):
        from modpack.report.sbom import code_digests, sbom_of

    audit = audit_package(file)
    with open_archive(file) as archive:
        digests = code_digests(archive)
    return sbom_of(audit, digests, form=form, file_sha256=_sha256(Path(file)), timestamp=timestamp)


def _sha256(file: Path) -> str | None:
    """The sha256 of a file in hex; None for a folder, which has none."""
    import hashlib

    from modpack.core.process import ProgressUnit, phase

    if file.is_dir():
        return None
    digest, size = hashlib.sha256(), file.stat().st_size
    with (
        phase("digesting the file", ProgressUnit.BYTES, size) as digesting,
        file.open("rb") as stream,
    ):
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
            digesting.advance(len(chunk))
    return digest.hexdigest()


def _time() -> datetime:
    """Now, to the second; or the time that builds are told to use (reproducible-builds.org)."""
    from datetime import datetime, timezone

    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        return datetime.now(timezone.utc).replace(microsecond=0)
    try:
        return datetime.fromtimestamp(int(given), timezone.utc)
    except (ValueError, OverflowError, OSError) as failure:
        reason = f"SOURCE_DATE_EPOCH is {given!r}: it must be a number of seconds since 1970"
        raise click.UsageError(reason) from failure
