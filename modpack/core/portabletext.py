"""Texts for a package, without the folders of the machine that it is made on."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Final

from modpack.core.currentfolder import current_folder

__all__ = ["folders_here", "portable_text"]

_ABSOLUTE: Final = re.compile(r"(?<![\w./:<])/(?:[^\s/:'\"(),]+/)+(?=[^\s/:'\"(),])")


def folders_here() -> list[str]:
    """The folders in which this process looks for modules and files."""
    here = current_folder()
    return [*sys.path, *([str(here)] if here is not None else [])]


def portable_text(text: str, folders: Iterable[str]) -> str:
    """A text in which paths begin below folders of this machine.

    Args:
        text: what was told to the user.
        folders: where code and files are looked for; of paths elsewhere, the last part stays.

    >>> portable_text("/work/shop/till.py is left out for /etc/shop/till.conf", ["/work"])
    'shop/till.py is left out for till.conf'
    >>> portable_text("see https://pypi.org/project/modpack, 3 / 4", [])
    'see https://pypi.org/project/modpack, 3 / 4'
    """
    known = {folder.rstrip("/") for folder in folders if folder.startswith("/")} - {""}
    for folder in sorted(known, key=len, reverse=True):
        text = text.replace(f"{folder}/", "")
    return _ABSOLUTE.sub("", text)
