"""Where modpack keeps what it can make again."""

from __future__ import annotations

import functools
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path


def cache_folder() -> Path:
    """The folder itself: ``MODPACK_CACHE_DIR``, or the platform's cache folder for this user.

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


_TELLING = ("MODPACK_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA", "HOME", "USERPROFILE")
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


def require_trusted_path(folder: Path) -> None:
    """Refuse a folder that somebody else could have put something into, or could exchange.

    Nobody but this user and root may write to it. Above it, others may write where they can
    neither remove nor rename what is not theirs, as in ``/tmp``.

    Raises:
        OSError: it is not safe to use, or is not there.
    """
    require_trusted_folder(folder)
    if hasattr(os, "getuid"):
        for place in _on_the_way(os.fspath(folder)):
            _refuse_exchangers(place)


def require_trusted_folder(folder: Path) -> None:
    """The same, of a folder in one that was looked at already.

    Raises:
        OSError: it is not safe to use, or is not there.
    """
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(f"{folder} is no folder")
    if hasattr(os, "getuid"):
        if status.st_uid not in (os.getuid(), 0):
            raise OSError(f"{folder} belongs to another user")
        if status.st_mode & _BY_OTHERS:
            raise OSError(f"others may write to {folder}")


_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_UID_MAP = Path("/proc/self/uid_map")
_OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")


def _on_the_way(path: str) -> Iterator[str]:
    """The folders above a path, the links among them, and the folders that these lead through."""
    seen = set[str]()
    todo = [os.path.dirname(path)]  # noqa: PTH120 - asked at each load
    while todo:
        place = todo.pop()
        while place not in seen:
            seen.add(place)
            yield place
            above = os.path.dirname(place)  # noqa: PTH120
            if os.path.islink(place):  # noqa: PTH114
                todo.append(os.path.join(above, os.readlink(place)))  # noqa: PTH115, PTH118
            place = above


def _refuse_exchangers(place: str) -> None:
    """Refuse a folder, or a link, of which somebody else could exchange what it holds."""
    status = os.lstat(place)
    if status.st_uid not in (os.getuid(), 0, _owner_outside()):
        raise OSError(f"{place} belongs to another user, who could exchange what is in it")
    if stat.S_ISLNK(status.st_mode) or status.st_mode & stat.S_ISVTX:
        return
    by_group = status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid)
    if by_group or status.st_mode & stat.S_IWOTH:
        raise OSError(f"others may write to {place}, and exchange what is in it")


@functools.lru_cache(maxsize=8)
def _is_private_group(group: int) -> bool:
    """Whether a group is root's, or has this user's name and no other member."""
    if group == 0:
        return True
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == user and set(found.gr_mem) <= {user}


@functools.lru_cache(maxsize=1)
def _owner_outside() -> int:
    """As whose a file is shown that belongs to nobody in this user namespace; -1 if none does.

    See user_namespaces(7): in a container without root, ``/`` may belong to somebody outside.
    """
    try:
        shown = int(_OVERFLOW_UID.read_text())
        ranges = [tuple(map(int, line.split())) for line in _UID_MAP.read_text().splitlines()]
        is_somebody = any(first <= shown < first + count for first, _, count in ranges)
    except (OSError, ValueError):
        return -1
    return -1 if is_somebody else shown


def make_private(folder: Path) -> None:
    """Make a folder and its parents, for this user only where they are new."""
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
