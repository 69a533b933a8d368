"""How files and folders look to the system: whoever changes one changes that."""

from __future__ import annotations

import os
import time
from typing import Final, TypeAlias

__all__ = ["Status", "is_settled", "status_of"]

Status: TypeAlias = tuple[int, int, int, int, int]
"""Device, inode, bytes, nanoseconds of the last change; and of the last that anybody made to it or
to what is said of it, which nobody can set back."""

_COARSEST: Final = 2_000_000_000
"""Nanoseconds that clocks of file systems may take to go on (FAT's)."""


def status_of(path: str) -> Status | None:
    """What changes when a file or a folder does; None if it is not there."""
    try:
        status = os.stat(path)  # noqa: PTH116 - asked of everything that is installed
    except (OSError, ValueError):
        return None
    times = status.st_mtime_ns, status.st_ctime_ns
    return status.st_dev, status.st_ino, status.st_size, *times


def is_settled(status: Status | None) -> bool:
    """Whether another change from now on will certainly change the status.

    Two changes shortly after each other may get the same time.
    """
    return status is not None and time.time_ns() - status[3] > _COARSEST
