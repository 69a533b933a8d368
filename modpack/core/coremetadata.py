"""The headers of a distribution's metadata, read without parsing all of it (core metadata)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["headers"]

_NEXT: Final = re.compile(r"\n(?![ \t])")
"""Where a header ends: a line that begins with a blank goes on with the one before."""
_NAME: Final = re.compile(r"([!-9;-~]*):[ \t]*")
_MOST: Final = 1 << 20
"""Characters of a text that may be headers: a hundred times what they take, with a licence."""


def headers(text: str) -> Mapping[str, list[str]]:
    r"""The headers of a METADATA or PKG-INFO file, by their names in small letters.

    What follows them is a description, often longer than all of them: it is not looked at, which
    is why this takes a small part of the time of :mod:`email`.

    Args:
        text: what is in the file; whatever comes after a million characters is no header.

    >>> headers("Name: a\nRequires-Dist: b\nRequires-Dist: c\n\nName: of something else")
    {'name': ['a'], 'requires-dist': ['b', 'c']}
    """
    text = text[:_MOST]
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    found: dict[str, list[str]] = {}
    for header in _NEXT.split(text.partition("\n\n")[0]):
        name = _NAME.match(header)
        if name is None:
            break
        found.setdefault(name[1].lower(), []).append(header[name.end() :])
    found.pop("", None)  # a line without a name says nothing, and is no end
    return found
