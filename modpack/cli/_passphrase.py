"""The passphrase of a private key."""

from __future__ import annotations

import os
import sys
from typing import Final

import click

PASSPHRASE_VARIABLE: Final = "MODPACK_KEY_PASSPHRASE"


def ask_passphrase(key: str, is_new: bool = False) -> str:
    """Return the passphrase of a key, from the environment or from a prompt.

    The command line is not an option: other users can see it.

    Raises:
        KeyFileError: If the environment has no passphrase, and stdin is not a terminal.
    """
    # For CI, where nobody can answer a prompt.
    given = os.environ.get(PASSPHRASE_VARIABLE)
    if given:
        return given
    if not sys.stdin.isatty():
        from modpack.errors import KeyFileError

        raise KeyFileError(
            key,
            "the key requires a passphrase, but stdin is not a terminal",
            hint=f"Set {PASSPHRASE_VARIABLE}, or run the command in a terminal.",
        )
    text = f"New passphrase for {key}" if is_new else f"Passphrase of {key}"
    try:
        answer: str = click.prompt(text, hide_input=True, confirmation_prompt=is_new, err=True)
    except click.Abort as failure:
        raise KeyboardInterrupt from failure
    return answer
