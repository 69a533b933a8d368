"""Where modpack keeps what it can make again."""

from __future__ import annotations

import functools
import os
import stat
import sys
from pathlib import Path

__all__ = ["cache_folder", "make_private", "refuse_strangers"]


def cache_folder() -> Path:
    """The folder itself: ``MODPACK_CACHE``, or the platform's cache folder for this user.

    Raises:
        RuntimeError: neither is known, because this user has no home folder; or it is relative to
            a current folder that was removed.
    """
    folder = _cache_folder(sys.platform, *map(os.environ.get, _TELLING))
    try:
        return folder.absolute()  # it is used wherever the process goes later
    except FileNotFoundError:
        reason = f"{folder} is relative to the current folder, which was removed"
        raise RuntimeError(reason) from None


_TELLING = ("MODPACK_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA", "HOME", "USERPROFILE")
"""The variables that tell of the folder, and of a user's home."""


@functools.lru_cache(maxsize=8)
def _cache_folder(
    platform: str, chosen: str | None, xdg: str | None, local: str | None, *home: str | None
) -> Path:
    if chosen:
        return Path(chosen).expanduser()
    if platform == "win32":
        base = local or str(Path.home() / "AppData" / "Local")
    elif platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = xdg or str(Path.home() / ".cache")
    return Path(base) / "modpack"


def refuse_strangers(folder: Path) -> None:
    """Refuse a folder that somebody else could have put something into.

    Raises:
        OSError: it is not safe to use, or is not there.
    """
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(f"{folder} is no folder")
    if hasattr(os, "getuid"):
        if status.st_uid not in (os.getuid(), 0):
            raise OSError(f"{folder} belongs to another user")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(f"others may write to {folder}")


def make_private(folder: Path) -> None:
    """Make a folder and its parents, for this user only where they are new."""
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
