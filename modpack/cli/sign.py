"""``modpack sign``: vouch for a package."""

from __future__ import annotations

from pathlib import Path

import click

from modpack.cli._common import (
    FILE,
    ask_passphrase,
    command,
    refuse_same,
    warn,
    write,
    write_json,
)
from modpack.report.progress import working


@command("sign", epilog="Exit status: 0 if the package was signed, 2 if not.")
@click.argument("file", metavar="FILE", type=FILE)
@click.option(
    "--key", "key_file", metavar="KEY", required=True, help="The private key to sign with."
)
@click.option(
    "--inside/--beside",
    "is_inside",
    default=True,
    help="Where the signature goes: into the package, or into FILE.sig.  [default: --inside]",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write there instead: the signed package, or with --beside the signature.",
)
@click.option(
    "--replace", is_flag=True, help="Drop the signatures that are there instead of adding to them."
)
def sign_command(
    file: str, key_file: str, is_inside: bool, output: str | None, replace: bool, as_json: bool
) -> None:
    """Vouch for a package, so that others can make sure that it is yours.

    FILE is a package of modpack, or the folder of an unzipped one. All of its records are compared
    with its manifest first; nothing in it is run or unpickled. What is signed is the package's
    digest, which stands for its whole content, whatever the file is called.

    The signature becomes a part of the package; nothing else in it changes, its digest included.
    With --beside it becomes a file of its own, FILE.sig, and the package stays as it is. Signatures
    with other keys stay, so that several people can sign.

    --key is a private key as modpack keygen makes it, or openssl genpkey -algorithm ed25519. If it
    is encrypted, its passphrase is asked for, or taken from MODPACK_KEY_PASSPHRASE.

    This needs an extra: pip install 'modpack[sign]'

    \b
    Examples:
      modpack sign model.modpack --key release
      modpack sign model.modpack --key release -o signed.modpack
      modpack sign model.modpack --key release --beside
      modpack verify model.modpack --key release.pub
    """
    if output is not None and not is_inside:
        refuse_same(file, Path(output))
    from modpack.core.process import usable_cores
    from modpack.security.signing import sign_package
    from modpack.security.signing_keys import is_readable_by_others, read_private

    private = read_private(key_file, lambda: ask_passphrase(key_file))
    if is_readable_by_others(key_file):
        warn(f"others can read the private key {key_file}. Remedy: chmod 600 {key_file}")
    with working(f"Signing {file}"):
        signed = sign_package(
            file,
            private,
            is_inside=is_inside,
            output=output,
            replace=replace,
            workers=usable_cores(),
        )
    if as_json:
        write_json(
            {
                "package": file,
                "digest": signed.digest,
                "key_id": private.key_id,
                "place": "inside" if signed.is_inside else "beside",
                "file": signed.file,
                "key_ids": signed.key_ids,
            }
        )
    else:
        from modpack.core.text import counted, printable

        place = f"inside {signed.file}" if signed.is_inside else signed.file
        others = len(signed.key_ids) - 1
        kept = f" ({counted(others, 'signature')} with other keys stayed)" if others else ""
        text = (
            f"signed:    {file}\n"
            f"digest:    {signed.digest}\n"
            f"key id:    {private.key_id}\n"
            f"signature: {place}{kept}\n"
        )
        write(printable(text, keep="\n"))
