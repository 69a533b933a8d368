"""The cache folder, for files that modpack can re-create."""

from __future__ import annotations

import functools
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path


def cache_folder() -> Path:
    """Return the cache folder: ``MODPACK_CACHE_DIR``, or the user's platform-specific one.

    Raises:
        RuntimeError: If the user has no home folder, or if the path is relative to a current
            folder that was removed.
    """
    folder = _cache_folder(sys.platform, *map(os.environ.get, _VARIABLES))
    try:
        return folder.absolute()  # the process may change its current folder later
    except FileNotFoundError:
        reason = f"{folder} is relative to the current folder, which was removed"
        raise RuntimeError(reason) from None


_VARIABLES = ("MODPACK_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA", "HOME", "USERPROFILE")
"""The environment variables that determine the folder."""


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
    """Check that no other user can modify or replace a folder.

    Only this user and root may write to it. Other users may write to its parent folders only if
    the sticky bit protects the files of others, as in ``/tmp``.

    Raises:
        OSError: If the folder is unsafe or does not exist.
    """
    require_trusted_folder(folder)
    if hasattr(os, "getuid"):
        for path in _parents_and_links(os.fspath(folder)):
            _require_irreplaceable(path)


def require_trusted_folder(folder: Path) -> None:
    """Check that no other user can modify a folder whose parent is already trusted.

    Raises:
        OSError: If the folder is unsafe or does not exist.
    """
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(f"{folder} is not a folder")
    _require_owner(folder, status, may_be_root=True)


def read_private(file: Path, most_bytes: int) -> bytes:
    """Return the contents of a file that only this user can change.

    Raises:
        OSError: If it is another kind of file.
    """
    descriptor = os.open(file, os.O_RDONLY | _NO_SURPRISES)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{file} is not a regular file")
        _require_owner(file, status, may_be_root=False)
        return stream.read(most_bytes)


def _require_owner(path: Path, status: os.stat_result, *, may_be_root: bool) -> None:
    """Check that no user but the owner, who is this user or root, can modify a file or folder."""
    if hasattr(os, "getuid"):
        if status.st_uid != os.getuid() and not (may_be_root and status.st_uid == 0):
            raise OSError(f"{path} belongs to another user")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(f"other users can write to {path}")


_NO_SURPRISES = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Flags that refuse a symlink, and do not wait for the writer of a named pipe."""
_UID_MAP = Path("/proc/self/uid_map")
_OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")


def _parents_and_links(path: str) -> Iterator[str]:
    """Yield the parents of a path, and those of the targets of symlinks among them."""
    seen = set[str]()
    todo = [os.path.dirname(path)]  # noqa: PTH120 - runs on each load
    while todo:
        current = todo.pop()
        while current not in seen:
            seen.add(current)
            yield current
            parent = os.path.dirname(current)  # noqa: PTH120
            if os.path.islink(current):  # noqa: PTH114
                todo.append(os.path.join(parent, os.readlink(current)))  # noqa: PTH115, PTH118
            current = parent


def _require_irreplaceable(path: str) -> None:
    """Check that no other user can replace the entries of a folder, or a symlink."""
    status = os.lstat(path)
    if status.st_uid not in (os.getuid(), 0, _unmapped_uid()):
        raise OSError(f"{path} belongs to another user, who could replace its contents")
    if stat.S_ISLNK(status.st_mode) or status.st_mode & stat.S_ISVTX:
        return
    by_group = status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid)
    if by_group or status.st_mode & stat.S_IWOTH:
        raise OSError(f"other users can write to {path} and replace its contents")


@functools.lru_cache(maxsize=8)
def _is_private_group(group: int) -> bool:
    """Return whether a group is root's, or this user's own group without other members."""
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
def _unmapped_uid() -> int:
    """Return the UID of files whose owner is not mapped into this user namespace, or -1.

    See user_namespaces(7): in a rootless container, ``/`` may belong to a user outside.
    """
    try:
        overflow = int(_OVERFLOW_UID.read_text())
        ranges = [tuple(map(int, line.split())) for line in _UID_MAP.read_text().splitlines()]
        is_mapped = any(first <= overflow < first + count for first, _, count in ranges)
    except (OSError, ValueError):
        return -1
    return -1 if is_mapped else overflow


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, accessible to this user only."""
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def replace_file(file: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file of the cache atomically, without flushing it to disk.

    Args:
        file: The file, in an existing folder.
        content: The contents.
        mode: The permissions, which the umask restricts.
    """
    making = file.with_name(f"{os.urandom(8).hex()}.tmp")
    try:
        with open(making, "xb", opener=functools.partial(os.open, mode=mode)) as opened:
            opened.write(content)
        making.replace(file)
    finally:
        making.unlink(missing_ok=True)
