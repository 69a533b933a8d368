"""The current folder, which another process may have removed."""

from __future__ import annotations

from pathlib import Path

__all__ = ["current_folder"]


def current_folder() -> Path | None:
    """The current folder; None if it is not there any more, as the import system takes it too."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None
