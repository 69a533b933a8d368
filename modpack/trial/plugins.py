"""Plugins: modules that a library finds through entry points, which no import statement names."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable
from pathlib import Path

__all__ = ["loaded_plugins"]


def loaded_plugins(group: str, packages: Iterable[Path] = ()) -> list[str]:
    """The modules of a group of entry points that this process has loaded.

    Whoever loads plugins asks for a group and loads what is in it. That such a module is loaded
    in the process in which the model works tells that the model may need it; what is merely
    installed is left out. What another package holds, it holds because it was needed.

    Args:
        group: the group of entry points.
        packages: the unpacked trees of packages that the model's code comes from.

    Returns:
        Module paths, sorted.
    """
    installed = importlib.metadata.entry_points(group=group)
    loaded = {entry.module for entry in installed if entry.module in sys.modules}
    trees = [str(tree) for tree in packages]
    held = importlib.metadata.distributions(path=trees) if trees else ()
    packaged = {e.module for found in held for e in found.entry_points if e.group == group}
    return sorted(loaded | packaged)
