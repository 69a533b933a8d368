"""Passphrases of keys: from the environment, or asked for.

Never from the command line, which others can see.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import click

__all__ = ["VARIABLE", "ask", "ask_twice"]

VARIABLE: Final = "MODPACK_KEY_PASSPHRASE"


def ask(key: str) -> str:
    """The passphrase of a key that is there.

    Raises:
        KeyFileError: it is not in the environment, and nobody can be asked.
    """
    return _given() or _asked(key, f"Passphrase of {key}", is_new=False)


def ask_twice(key: str) -> str:
    """The passphrase of a new key.

    Raises:
        KeyFileError: it is not in the environment, and nobody can be asked.
    """
    return _given() or _asked(key, f"New passphrase for {key}", is_new=True)


def _given() -> str | None:
    return os.environ.get(VARIABLE)


def _asked(key: str, text: str, is_new: bool) -> str:
    if not sys.stdin.isatty():
        from modpack.errors import KeyFileError

        reason = f"it needs a passphrase. Remedy: put it into {VARIABLE}, or call at a terminal"
        raise KeyFileError(key, reason)
    try:
        answer: str = click.prompt(text, hide_input=True, confirmation_prompt=is_new, err=True)
    except click.Abort as failure:
        raise KeyboardInterrupt from failure
    return answer
