"""Texts for people and packages: sizes, counts, foreign text, paths without this machine."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from modpack.core.process import current_folder

_ABSOLUTE: Final = re.compile(r"(?<![\w./:<])/(?:[^\s/:'\"(),]+/)+(?=[^\s/:'\"(),])")


def local_folders() -> list[str]:
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


_UNITS = ("kB", "MB", "GB", "TB")


def human_size(size: int) -> str:
    """A number of bytes, as people say it (powers of 1000).

    >>> human_size(999), human_size(1500), human_size(2_340_000), human_size(999_990)
    ('999 B', '1.5 kB', '2.3 MB', '1.0 MB')
    """
    if size < 1000:
        return f"{size} B"
    amount = float(size)
    for unit in _UNITS:
        amount /= 1000
        if round(amount, 1) < 1000:
            return f"{amount:.1f} {unit}"
    return f"{amount:.1f} {_UNITS[-1]}"


def counted(number: int, noun: str) -> str:
    """A number and its noun.

    >>> counted(1, "module"), counted(2, "module")
    ('1 module', '2 modules')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def printable(text: str, keep: str = "") -> str:
    r"""A text from a package with everything escaped that could steer a terminal.

    Args:
        text: the text.
        keep: characters to leave as they are although they are not printable.

    >>> printable("a\x1b[2Jb"), printable("one\ntwo", keep="\n")
    ('a\\x1b[2Jb', 'one\ntwo')
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def listed(names: Sequence[str], most: int) -> str:
    """Names in a row, and how many more there are.

    >>> listed(["a", "b"], 2), listed(["a", "b", "c"], 2)
    ('a, b', 'a, b and 1 more')
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
