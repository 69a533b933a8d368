"""Temporary files beside a target, and what a killed export left of them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
from typing import Final

__all__ = ["remove_leftovers", "temporary_name"]

_SUFFIX: Final = ".modpack-tmp"
_WHOSE: Final = re.compile(r"(\d+)-([0-9a-f]{8})-[0-9a-f]+")
_LONGEST_STEM: Final = 40
"""Characters of the target's name that are kept: the result must fit into 255 bytes."""


def temporary_name(name: str, random: str) -> str:
    """Name of a temporary file for the target ``name``: it says whose it is."""
    return f"{_prefix(name)}{os.getpid()}-{_place()}-{random}{_SUFFIX}"


def remove_leftovers(folder: str, name: str) -> None:
    """Removes temporaries of the target ``name`` that were left by processes now dead.

    A file goes only if its name says that it was made here, by a process that can be known to
    have ended; a folder may be shared with other machines and containers.
    """
    if os.name != "posix":
        return  # elsewhere there is no harmless way to ask whether a process lives
    prefix = _prefix(name)
    with contextlib.suppress(OSError):  # tidying up is a courtesy, never a reason to fail
        for candidate in os.listdir(folder):
            if candidate.startswith(prefix) and candidate.endswith(_SUFFIX):
                match = _WHOSE.fullmatch(candidate[len(prefix) : -len(_SUFFIX)])
                if match and match[2] == _place() and _has_ended(int(match[1])):
                    os.unlink(os.path.join(folder, candidate))


def _prefix(name: str) -> str:
    return f".{name[:_LONGEST_STEM]}."


def _place() -> str:
    """Tells apart what has process ids of its own: hosts, and containers on a host."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return hashlib.sha256(f"{socket.gethostname()} {namespace}".encode()).hexdigest()[:8]


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False
