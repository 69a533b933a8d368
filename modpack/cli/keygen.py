"""``modpack keygen``: create a key pair for signing packages."""

from __future__ import annotations

import click

from modpack.cli._command import command
from modpack.cli._output import write_json, write_rows
from modpack.cli._passphrase import ask_passphrase


@command("keygen", epilog="Exit status: 0 if the keys were written, 2 if not.")
@click.argument("name", metavar="NAME")
@click.option("--passphrase", is_flag=True, help="Encrypt the private key.")
@click.option(
    "--force", is_flag=True, help="Overwrite existing key files. The old keys cannot be recovered."
)
def keygen_command(name: str, passphrase: bool, force: bool, as_json: bool) -> None:
    """Create an Ed25519 key pair for signing packages.

    modpack writes the private key to NAME, which only you can read, and the public key to NAME.pub.
    Keep the private key, and give the public key to the users of your packages. The printed key id
    is the SHA-256 digest of the public key.

    --passphrase encrypts the private key. modpack reads the passphrase from MODPACK_KEY_PASSPHRASE
    or asks for it.

    Requires an extra: pip install 'modpack[sign]'

    \b
    Examples:
      modpack keygen release
      modpack keygen release --passphrase
      modpack sign model.modpack --key release
    """
    if name.endswith(".pub"):
        raise click.UsageError(
            f"{name} would contain the private key. Pass a name that does not end with .pub."
        )
    from modpack.security.signing_keys import generate, require_unused, write_pair

    key = generate()
    if not force:
        require_unused(name)  # before asking for a passphrase
    secret = ask_passphrase(name, is_new=True) if passphrase else None
    private, public = write_pair(key, name, passphrase=secret, overwrite=force)
    if as_json:
        from modpack.report.json_output import KeygenDocument

        write_json(KeygenDocument(key.key_id, str(private), str(public), passphrase))
    else:
        write_rows(
            ("private key", f"{private} (keep it secret)"),
            ("public key", f"{public} (share it)"),
            ("key id", key.key_id),
        )
