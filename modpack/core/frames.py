"""Whose code called modpack."""

from __future__ import annotations

import sys

from modpack.core.names import root_of

__all__ = ["frames_of_ours"]


def frames_of_ours() -> int:
    """How many frames above its caller the user's code is, for warnings that point there."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and root_of(frame.f_globals.get("__name__", "")) == "modpack":
        depth, frame = depth + 1, frame.f_back
    return depth
