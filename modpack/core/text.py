"""Text formatting: sizes, counts, untrusted text, and paths without local folders."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Final

from modpack.core.process import current_folder

_ABSOLUTE: Final = r"(?<![\w./:<])/(?:[^\s/:'\"(),]+/)+(?=[^\s/:'\"(),])"


def local_folders() -> list[str]:
    """Return the folders of this machine that contain modules: ``sys.path`` and the current one."""
    current = current_folder()
    return [*sys.path, *([str(current)] if current is not None else [])]


def portable_text(text: str, folders: Iterable[str]) -> str:
    """Return a text without the absolute folders of its paths.

    Args:
        text: Message for the user.
        folders: Folders that paths become relative to. Other paths are cut to their last component.

    >>> portable_text("/work/shop/till.py is excluded, see /etc/shop/till.conf", ["/work"])
    'shop/till.py is excluded, see till.conf'
    >>> portable_text("see https://pypi.org/project/modpack, 3 / 4", [])
    'see https://pypi.org/project/modpack, 3 / 4'
    """
    known = {folder.rstrip("/") for folder in folders if folder.startswith("/")} - {""}
    # The longest first, because a folder may contain another one.
    for folder in sorted(known, key=len, reverse=True):
        text = text.replace(f"{folder}/", "")
    return re.sub(_ABSOLUTE, "", text)


_UNITS = ("kB", "MB", "GB", "TB")


def dtype_name(dtype: object) -> str:
    """Return the name of a torch dtype without ``torch.``: ``"float32"``."""
    return str(dtype).removeprefix("torch.")


def human_size(size: int) -> str:
    """Format a number of bytes with a unit (powers of 1000).

    >>> human_size(999), human_size(1500), human_size(2_340_000), human_size(999_990)
    ('999 B', '1.5 kB', '2.3 MB', '1.0 MB')
    """
    if size < 1000:
        return f"{size} B"
    amount = float(size)
    for unit in _UNITS:
        amount /= 1000
        # Rounded before it is compared: 999,990 bytes are 1.0 MB and not 1000.0 kB.
        if round(amount, 1) < 1000:
            return f"{amount:.1f} {unit}"
    return f"{amount:.1f} {_UNITS[-1]}"


def counted(number: int, noun: str) -> str:
    """Format a number with its noun, in the plural if needed.

    >>> counted(1, "module"), counted(2, "module")
    ('1 module', '2 modules')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def printable(text: str, keep: str = "") -> str:
    r"""Escape all characters of untrusted text that could control a terminal.

    Args:
        text: Text from a package.
        keep: Nonprintable characters to leave unescaped.

    >>> printable("a\x1b[2Jb"), printable("one\ntwo", keep="\n")
    ('a\\x1b[2Jb', 'one\ntwo')
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
