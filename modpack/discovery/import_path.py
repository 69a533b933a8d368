"""The distributions in the folders of the import path, with a cache that detects changes."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, TypeAlias

from modpack.core.names import normalized
from modpack.core.process import current_folder

Status: TypeAlias = tuple[int, int, int, int, int]
"""Device, inode, size in bytes, mtime, and ctime in nanoseconds. Programs can reset the mtime, but
not the ctime."""

ORIGIN: Final = "direct_url.json"
"""File with the URL or folder that a distribution was installed from (PEP 610)."""
_MAX_CLOCK_STEP: Final = 2_000_000_000
"""Coarsest timestamp resolution of a file system in nanoseconds (FAT)."""
_MAX_FOLDERS: Final = 128


def status_of(path: str) -> Status | None:
    """Return the status of a file or a folder, for change detection; None if it is missing."""
    try:
        status = os.stat(path)  # noqa: PTH116 - called for every distribution
    except (OSError, ValueError):
        return None
    times = status.st_mtime_ns, status.st_ctime_ns
    return status.st_dev, status.st_ino, status.st_size, *times


def is_mtime_reliable(status: Status | None) -> bool:
    """Return whether any further change is certain to change the status.

    Two changes in short succession may get the same timestamp.
    """
    return status is not None and time.time_ns() - status[3] > _MAX_CLOCK_STEP


def is_within(folder: str, prefix: str) -> bool:
    """Return whether a folder is, or is in, another one, given with a trailing separator."""
    return f"{folder}{os.sep}".startswith(prefix)


@dataclass
class Folder:
    """The distributions in a folder, at a status of the folder.

    Attributes:
        status: Status of the folder.
        is_reliable: Whether any further change is certain to change the status.
        prefix: Path with a trailing separator.
        found: Metadata folders and files of the distributions in the folder.
    """

    status: Status | None
    is_reliable: bool
    prefix: str
    found: Sequence[str]

    @cached_property
    def by_name(self) -> Mapping[str, Sequence[str]]:
        """Metadata folders and files by the normalized names of their distributions."""
        by_name: dict[str, list[str]] = {}
        for each in self.found:
            by_name.setdefault(_distribution_name(each), []).append(each)
        return by_name


def read_folders(path: Sequence[str] | None) -> Sequence[Folder]:
    """Return the current folders of an import path. Default: ``sys.path``.

    Only changed folders are listed again: listing a hundred distributions takes as long as saving a
    small model. Archives, and finders that know distributions without folders, are not asked: what
    they provide counts as the user's own code.
    """
    # If the current folder was deleted, relative entries lead nowhere.
    current = current_folder()
    entries: Iterable[object] = sys.path if path is None else path
    folders = (entry for entry in entries if isinstance(entry, str))
    return [
        _read_folder(each) for each in folders if current is not None or each.startswith(os.sep)
    ]


def _read_folder(entry: str) -> Folder:
    """Return a folder of the import path; an empty name is the current folder."""
    folder = entry if entry.startswith(os.sep) else str(Path(entry).absolute())
    # Read before the listing: a change meanwhile makes the entry outdated, not wrong.
    status = status_of(folder)
    cached = _folder_cache.get(folder)
    if cached is not None and cached.status == status and cached.is_reliable:
        return cached
    names: list[str] = []
    with contextlib.suppress(OSError):  # missing, or an archive
        names = os.listdir(folder)  # noqa: PTH208 - site-packages may have thousands
    prefix = f"{Path(folder)}{os.sep}"  # creating Path objects takes longer than listing
    suffixes = (".dist-info", ".egg-info")
    is_egg = folder.lower().endswith(".egg")
    found = [
        prefix + name
        for name in names
        if name.lower().endswith(suffixes) or (is_egg and name.lower() == "egg-info")
    ]
    if len(_folder_cache) >= _MAX_FOLDERS:
        _folder_cache.clear()
    _folder_cache[folder] = Folder(status, is_mtime_reliable(status), prefix, found)
    return _folder_cache[folder]


def _distribution_name(path: str) -> str:
    """Return the normalized name of a distribution from its metadata folder or file.

    >>> (
    ...     _distribution_name("/lib/Fake_Dist-1.5.dist-info"),
    ...     _distribution_name("/lib/old-2-py3.11.egg/EGG-INFO"),
    ... )
    ('fake-dist', 'old')
    """
    folder, _, name = path.replace(os.sep, "/").rpartition("/")
    if name.lower() == "egg-info":
        name = folder.rpartition("/")[2]
    return normalized(name.rpartition(".")[0].partition("-")[0])


_folder_cache: dict[str, Folder] = {}
"""Folders that this process has listed, by path."""
