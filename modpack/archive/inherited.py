"""Files that a forked child must not write to: it inherits them, and what their buffers hold."""

from __future__ import annotations

import contextlib
import os
from typing import IO, Final
from weakref import WeakSet

__all__ = ["keep_from_children"]

_files: Final[WeakSet[IO[bytes]]] = WeakSet()


def keep_from_children(file: IO[bytes]) -> None:
    """Lets nothing that a forked child does get into a file.

    A buffer is a copy in the child, which writes it when it ends, but the file is the same: its
    parent's bytes would be there twice.

    Args:
        file: one with a descriptor, or one that may come to have one when it grows.
    """
    _files.add(file)


def _lead_nowhere() -> None:
    """In a forked child: let the descriptors lead elsewhere; the parent's stay as they are."""
    for file in list(_files):
        if file.closed or file.name is None:  # it is in memory
            continue
        with contextlib.suppress(OSError):  # there are no descriptors left
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, file.fileno(), inheritable=False)
            os.close(nowhere)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lead_nowhere)
