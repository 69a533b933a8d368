"""Paths as texts, where making a :class:`pathlib.Path` takes longer than what is asked of it."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["spelled_path"]


def spelled_path(path: str) -> str:
    """A path as :mod:`pathlib` writes it, which nearly all are.

    >>> spelled_path("lab/./models/")
    'lab/models'
    """
    return path if os.path.normpath(path) == path else str(Path(path))
