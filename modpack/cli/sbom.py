"""``modpack sbom``: print a package's software bill of materials, in CycloneDX."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modpack.cli._command import command, require_extra
from modpack.cli._options import FILE, PACKAGE
from modpack.cli._output import require_other_file, write, write_file
from modpack.report.progress import working

if TYPE_CHECKING:
    from datetime import datetime


@command(
    "sbom",
    epilog="Exit status: 0 if the SBOM was written, 2 if not.",
    has_json=False,
)
@click.argument("file", metavar="FILE", type=PACKAGE)
@click.option("-o", "--output", metavar="FILE", type=FILE, help="Write to FILE instead of stdout.")
@click.option(
    "--timestamp",
    is_flag=True,
    help="Include the current time, or SOURCE_DATE_EPOCH if that is set.",
)
def sbom_command(file: str, output: str | None, timestamp: bool) -> None:
    """Print a software bill of materials (CycloneDX 1.6).

    FILE is a package written by modpack or torch.package, or the folder of an unzipped one.
    modpack reads it without executing or unpickling anything in it.

    The SBOM lists the model, the distributions and code in the package, and the distributions that
    the loading environment must provide, with versions, licenses, and digests. Without --timestamp,
    the SBOM of a package is always the same, byte for byte.

    Requires an extra: pip install 'modpack[sbom]'

    \b
    Examples:
      modpack sbom model.modpack
      modpack sbom model.modpack -o model.cdx.json
      modpack sbom model.modpack -o model.cdx.json --timestamp
    """
    if output is not None:
        require_other_file(file, Path(output))
    created = _creation_time() if timestamp else None
    from modpack.report.audit import audit_package

    with require_extra("sbom", "cyclonedx-python-lib 9", ("cyclonedx", "packageurl")):
        from modpack.report.sbom import sbom_of

    with working(f"Reading {file}"):
        digest = _sha256(Path(file))
        text = sbom_of(audit_package(file), file_sha256=digest, timestamp=created)
    if output is None:
        write(text)
    else:
        write_file(Path(output), text)


def _sha256(file: Path) -> str | None:
    """Return the SHA-256 digest of a file in hex; None for a folder or a URL."""
    import hashlib

    from modpack.core.process import phase

    if not file.is_file():
        return None
    digest = hashlib.sha256()
    with phase("digesting the file"), file.open("rb") as stream:
        # In chunks, because packages may be larger than memory.
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _creation_time() -> datetime:
    """Return SOURCE_DATE_EPOCH (reproducible-builds.org) if it is set, else the current time."""
    from datetime import datetime, timezone

    # Builds that must be reproducible set the time for all their tools.
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        return datetime.now(timezone.utc).replace(microsecond=0)
    try:
        return datetime.fromtimestamp(int(given), timezone.utc)
    except (ValueError, OverflowError, OSError) as failure:
        message = f"SOURCE_DATE_EPOCH must be a number of seconds since 1970, not {given!r}"
        raise click.UsageError(message) from failure
