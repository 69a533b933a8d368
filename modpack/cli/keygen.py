"""``modpack keygen``: a key to sign packages with."""

from __future__ import annotations

import click

from modpack.cli._common import ask_passphrase, command, write, write_json


@command("keygen", epilog="Exit status: 0 if the key was made, 2 if not.")
@click.argument("name", metavar="NAME")
@click.option("--passphrase", is_flag=True, help="Encrypt the private key.")
@click.option("--force", is_flag=True, help="Overwrite keys that are there: they are lost.")
def keygen_command(name: str, passphrase: bool, force: bool, as_json: bool) -> None:
    """Make a key to sign packages with (Ed25519).

    The private key is written to NAME, which nobody but you can read, and the public one to
    NAME.pub. Keep the first, and give the second to whoever shall trust your packages. What is
    printed names the key: the sha256 of the public one.

    With --passphrase the private key is encrypted. The passphrase is asked for, or taken from
    MODPACK_KEY_PASSPHRASE.

    This needs an extra: pip install 'modpack[sign]'

    \b
    Examples:
      modpack keygen release
      modpack keygen release --passphrase
      modpack sign model.modpack --key release
    """
    if name.endswith(".pub"):
        raise click.UsageError(f"{name} would hold the private key: leave .pub out")
    from modpack.security.signing_keys import generate, refuse_taken, write_pair

    key = generate()
    if not force:
        refuse_taken(name)  # before anybody thinks of a passphrase
    secret = ask_passphrase(name, is_new=True) if passphrase else None
    private, public = write_pair(key, name, passphrase=secret, overwrite=force)
    if as_json:
        write_json(
            {
                "key_id": key.key_id,
                "private_key": str(private),
                "public_key": str(public),
                "encrypted": passphrase,
            }
        )
    else:
        from modpack.core.text import printable

        text = (
            f"private key: {private} (keep it)\n"
            f"public key:  {public} (give it to those who shall trust it)\n"
            f"key id:      {key.key_id}\n"
        )
        write(printable(text, keep="\n"))
