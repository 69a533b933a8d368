"""``modpack pull``: pull a package from an OCI registry."""

from __future__ import annotations

import click

from modpack.cli._command import command, require_extra
from modpack.cli._options import FILE
from modpack.cli._output import write_json, write_rows
from modpack.cli.push import MODULES
from modpack.core.text import human_size
from modpack.report.progress import working


@command("pull", epilog="Exit status: 0 if the package was pulled, 2 if not.")
@click.argument("address", metavar="REGISTRY/REPOSITORY[:TAG|@DIGEST]")
@click.option(
    "-o", "--output", metavar="FILE", type=FILE, required=True, help="Write the package to FILE."
)
def pull_command(address: str, output: str, as_json: bool) -> None:
    """Pull a package from an OCI registry.

    The file is the one that was pushed, byte for byte. Weights next to the package and a detached
    signature are written next to FILE. FILE is replaced after all digests were checked. Without a
    tag or digest, modpack pulls the tag latest.

    An address that ends with #sha256= and the package's digest, as modpack inspect prints it, pulls
    this package only.

    Credentials are those of docker login. Registries on this machine are reached over HTTP, and all
    others over HTTPS.

    Requires an extra: pip install 'modpack[oci]'

    \b
    Examples:
      modpack pull ghcr.io/team/model:1.0 -o model.modpack
    """
    with require_extra("oci", "oras 0.2.30", MODULES, name="pull"):
        from modpack.integrations.oci import pull

    with working(f"Pulling {address}"):
        pulled = pull(address, output)
    if as_json:
        return write_json(pulled)
    write_rows(
        ("pulled", pulled.url),
        ("manifest", pulled.manifest),
        ("wrote", f"{pulled.path}, {human_size(pulled.size_bytes)}"),
        *(("weights", name) for name in pulled.shards),
        ("signature", pulled.signature_path or "no detached signature"),
    )
