"""``modpack sign``: sign a package."""

from __future__ import annotations

from pathlib import Path

import click

from modpack.cli._command import command
from modpack.cli._options import FILE
from modpack.cli._output import require_other_file, warn, write_json, write_rows
from modpack.cli._passphrase import ask_passphrase
from modpack.report.progress import working


@command("sign", epilog="Exit status: 0 if the package was signed, 2 if not.")
@click.argument("file", metavar="FILE", type=FILE)
@click.option("--key", "key_file", metavar="KEY", required=True, help="Sign with this private key.")
@click.option(
    "--embed/--detached",
    "embed",
    default=True,
    help="Write the signature into the package, or to FILE.sig.  [default: embed]",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=FILE,
    help="Write the signed package, or the detached signature, to FILE.",
)
@click.option("--replace", is_flag=True, help="Remove existing signatures instead of keeping them.")
def sign_command(
    file: str, key_file: str, embed: bool, output: str | None, replace: bool, as_json: bool
) -> None:
    """Sign a package so that others can verify who published it.

    FILE is a modpack package or the folder of an unzipped one. modpack first compares all records
    with the manifest, without executing or unpickling anything. The signature covers the
    package's digest and therefore its whole content, but not the file name.

    An embedded signature becomes a record of the package; its other records and its digest do not
    change. A detached signature is written to FILE.sig, and the package does not change. Existing
    signatures with other keys are kept, so several people can sign one package.

    KEY is a private key from modpack keygen or openssl genpkey -algorithm ed25519. If the key is
    encrypted, modpack reads the passphrase from MODPACK_KEY_PASSPHRASE or asks for it.

    Requires an extra: pip install 'modpack[sign]'

    \b
    Examples:
      modpack sign model.modpack --key release
      modpack sign model.modpack --key release -o signed.modpack
      modpack sign model.modpack --key release --detached
      modpack verify model.modpack --key release.pub
    """
    # A detached signature that is written to the package would destroy it.
    if output is not None and not embed:
        require_other_file(file, Path(output))
    from modpack.core.process import usable_cores
    from modpack.security.signing import sign_package
    from modpack.security.signing_keys import is_readable_by_others, read_private

    private = read_private(key_file, lambda: ask_passphrase(key_file))
    # A warning only: some file systems have no permissions.
    if is_readable_by_others(key_file):
        warn(f"{key_file}: other users can read this private key. Run: chmod 600 {key_file}")
    with working(f"Signing {file}"):
        signed = sign_package(
            file,
            private,
            embed=embed,
            output=output,
            replace=replace,
            workers=usable_cores(),
        )
    if as_json:
        write_json(signed)
    else:
        from modpack.core.text import counted

        location = signed.signature_path
        location = f"embedded in {location}" if embed else location
        others = len(signed.key_ids) - 1
        keys = "another key" if others == 1 else "other keys"
        kept = f" (kept {counted(others, 'signature')} with {keys})" if others else ""
        write_rows(
            ("signed", file),
            ("digest", signed.digest),
            ("key id", signed.key_id),
            ("signature", f"{location}{kept}"),
        )
