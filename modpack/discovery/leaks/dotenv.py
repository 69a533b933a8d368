"""``.env`` files: what they keep out of the code, and must stay out of packages too."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from modpack.discovery.leaks.assignments import is_secret_name, is_secret_value

__all__ = ["folders_around", "is_env_file", "is_project", "known_values", "values_in"]

# Kept as texts, and compiled by re where there is a file to read: few folders have one.
_LINE: Final = (
    rb"^[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.]*)[ \t]*=[ \t]*"
    rb"(?:'([^'\n]*)'|\"([^\"\n]*)\"|([^\s#'\"][^\n#]*))"
)
_NO_SECRETS: Final = (".example", ".sample", ".template", ".dist", ".defaults", ".schema")
_NAME: Final = re.compile(r"(?:.*\.)?env(?:\.[\w.-]+)?", re.IGNORECASE)
_LABEL_PART: Final = rb"(?:[A-Za-z]+\d{0,4}|\d{1,4}[A-Za-z]{0,2})"
_LIKE_A_LABEL: Final = rb"(?:%b[_./:+-])*%b" % (_LABEL_PART, _LABEL_PART)
"""What a variable that is not called a secret often holds: ``shop-models-2024``."""
_IN_URL: Final = rb"[a-z][a-z0-9+.-]*://[^\s:/@]*:([^\s/@]{6,})@"
_MOST_BYTES: Final = 1 << 20
_SHORTEST: Final = 8
_PROJECT_MARKS: Final = (".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg")
_MOST_PARENTS: Final = 12


def is_env_file(name: str) -> bool:
    """Whether a file is one by its name.

    >>> is_env_file(".env"), is_env_file("prod.env"), is_env_file(".env.example")
    (True, True, False)
    """
    is_one = _NAME.fullmatch(name) is not None and "." in name
    return is_one and not name.lower().endswith(_NO_SECRETS)


def values_in(data: bytes) -> Iterator[tuple[str, bytes]]:
    r"""The values of a ``.env`` file that are secret, each with its name.

    >>> list(values_in(b"DEBUG=1\nDB_PASSWORD='Tr0ub4dor&3'"))
    [('DB_PASSWORD', b'Tr0ub4dor&3')]
    """
    for match in re.finditer(_LINE, data, re.MULTILINE):
        name, value = match[1], (match[2] or match[3] or match[4] or b"").strip()
        in_url = re.match(_IN_URL, value)
        if in_url is not None:
            value = in_url[1]
        elif not is_secret_value(value, b"password" if is_secret_name(name) else b"value"):
            continue
        elif not is_secret_name(name) and (b"/" in value or re.fullmatch(_LIKE_A_LABEL, value)):
            continue  # a path, or a name
        if len(value) >= _SHORTEST:
            yield name.decode("ascii"), value


def known_values(folder: str) -> dict[bytes, str]:
    """The secret values of the ``.env`` files in a folder, and which variable each is of."""
    found: dict[bytes, str] = {}
    with contextlib.suppress(OSError):  # what cannot be read cannot have got into the code
        # pathlib's glob takes ten times as long, and each export looks into some ten folders.
        names = os.listdir(folder)  # noqa: PTH208
        likely = sorted(n for n in names if ".env" in os.path.normcase(n))
        for file in (Path(folder, name) for name in likely if is_env_file(name)):
            if file.is_file() and file.stat().st_size <= _MOST_BYTES:
                for name, value in values_in(file.read_bytes()):
                    found.setdefault(value, f"the value of {name} in {file}")
    return found


def is_project(folder: str) -> bool:
    """Whether a folder is the outermost one of a project."""
    return any(map(os.path.exists, [f"{folder}/{mark}" for mark in _PROJECT_MARKS]))


def folders_around(folder: str, is_project: Callable[[str], bool] = is_project) -> Sequence[str]:
    """A folder, and those around it up to the project's; only itself if it is in no project.

    Args:
        folder: the folder, as :class:`pathlib.Path` writes it; a path of each around it would take
            longer than looking into them.
        is_project: tells the project's; who asks for many folders may remember the answers.
    """
    around = [folder]
    while not is_project(around[-1]):
        # What is around a single relative name is the current folder.
        outer = os.path.dirname(around[-1]) or "."  # noqa: PTH120
        if outer == around[-1] or len(around) == _MOST_PARENTS:
            return [folder]
        around.append(outer)
    return around
