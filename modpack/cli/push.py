"""``modpack push``: push a package to an OCI registry."""

from __future__ import annotations

import click

from modpack.cli._command import command, require_extra
from modpack.cli._options import FILE
from modpack.cli._output import write_json, write_rows
from modpack.core.text import counted, human_size
from modpack.report.progress import working

MODULES = ("fsspec", "oras", "requests")


@command("push", epilog="Exit status: 0 if the package was pushed, 2 if not.")
@click.argument("file", metavar="FILE", type=FILE)
@click.argument("address", metavar="REGISTRY/REPOSITORY:TAG")
def push_command(file: str, address: str, as_json: bool) -> None:
    """Push a package to an OCI registry.

    FILE is a modpack package. modpack first compares all records with the manifest, without
    executing or unpickling anything. Weights next to the package and a detached signature
    (FILE.sig) are pushed with it. The summary of an audit becomes annotations.

    The layers are ranges of the file. A registry stores each layer once, so that a new version
    uploads only what has changed. All commands read the package at oci://REGISTRY/REPOSITORY:TAG.

    Credentials are those of docker login. Registries on this machine are reached over HTTP, and all
    others over HTTPS.

    Requires an extra: pip install 'modpack[oci]'

    \b
    Examples:
      modpack push model.modpack ghcr.io/team/model:1.0
      modpack audit oci://ghcr.io/team/model:1.0
    """
    with require_extra("oci", "oras 0.2.30", MODULES, name="push"):
        from modpack.integrations.oci import push

    with working(f"Pushing {file}"):
        pushed = push(file, address)
    if as_json:
        return write_json(pushed)
    write_rows(
        ("pushed", pushed.url),
        ("manifest", pushed.manifest),
        ("layers", f"{counted(pushed.layers, 'layer')}, {human_size(pushed.size_bytes)}"),
        ("uploaded", f"{pushed.uploaded}, {human_size(pushed.uploaded_bytes)}"),
        ("signature", "pushed" if pushed.signed else "none"),
    )
