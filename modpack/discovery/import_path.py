"""What is installed in the folders of the import path: listed again when a folder changes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from modpack.core.names import normalized_distribution as normalized
from modpack.core.process import current_folder

if TYPE_CHECKING:
    from importlib.metadata import DistributionFinder

    from importlib_metadata import Distribution as LibraryDistribution

Status: TypeAlias = tuple[int, int, int, int, int]
"""Device, inode, bytes, nanoseconds of the last change; and of the last that anybody made to it or
to what is said of it, which nobody can set back."""

ORIGIN: Final = "direct_url.json"
"""Says where a distribution was installed from (PEP 610): that of an editable one is its code."""
_COARSEST: Final = 2_000_000_000
"""Nanoseconds that clocks of file systems may take to go on (FAT's)."""
_MAX_FOLDERS: Final = 128
_OF_FOLDERS: Final = ("importlib_metadata", "_frozen_importlib_external")
"""Where the finders come from that look into the folders of a path."""


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


def lies_in(folder: str, home: str) -> bool:
    """Whether a folder is another one, which is written with a separator, or lies in it."""
    return f"{folder}{os.sep}".startswith(home)


class FoundDistribution(NamedTuple):
    """A distribution that is installed.

    Attributes:
        place: the folder of its metadata, or the file; empty if it has none.
        library: reads its metadata, where that are no files in a folder.
    """

    place: str
    library: LibraryDistribution | None = None


@dataclass
class Folder:
    """What is installed in a folder, and how the folder looked then.

    Attributes:
        status: how it looked.
        is_certain: whether it looks otherwise as soon as anything else is in it.
        home: its name with a separator at its end; empty if it is an archive.
        found: what is installed in it.
    """

    status: Status | None
    is_certain: bool
    home: str
    found: Sequence[FoundDistribution]

    @cached_property
    def named(self) -> Mapping[str, Sequence[FoundDistribution]]:
        """What is installed by normalized names, as the folders of metadata have them."""
        named: dict[str, list[FoundDistribution]] = {}
        for each in self.found:
            named.setdefault(_name_in(each.place), []).append(each)
        return named


def folders_on(path: Sequence[str] | None) -> Sequence[Folder] | None:
    """The folders of an import path, ``sys.path`` if None, as they are now.

    What was listed before is listed again only where a folder has changed: listing a hundred
    distributions takes as long as saving a small model.

    Returns:
        None if another finder, such as that of a loaded package, has anything to tell of:
        then :func:`discover` what is installed.
    """
    finders = [f for f in sys.meta_path if hasattr(f, "find_distributions")]
    others = [f for f in finders if getattr(f, "__module__", "") not in _OF_FOLDERS]
    if others:
        context = _context(path, None)
        if any(True for finder in others for _ in finder.find_distributions(context)):
            return None
    here = current_folder()
    entries: Iterable[object] = sys.path if path is None else path
    folders = (entry for entry in entries if isinstance(entry, str))
    return [_looked_at(each) for each in folders if here is not None or each.startswith(os.sep)]


def discover(path: Sequence[str] | None, name: str | None = None) -> list[FoundDistribution]:
    """What all finders know of, in the order of the path; of one name if that is given."""
    from importlib_metadata import Distribution  # takes 4 ms

    found = Distribution.discover(context=_context(path, name))
    return [FoundDistribution(str(getattr(each, "_path", "")), each) for each in found]


def _looked_at(entry: str) -> Folder:
    """What is installed in a folder of the path; an empty name is the current folder."""
    folder = entry if entry.startswith(os.sep) else str(Path(entry).absolute())
    status = status_of(folder)
    known = _folders.get(folder)
    if known is None or known.status != status or not known.is_certain:
        home, found = _listed(folder) if status is not None else ("", [])
        known = Folder(status, is_settled(status), home, found)
        if len(_folders) >= _MAX_FOLDERS:
            _folders.clear()
        _folders[folder] = known
    return known


def _listed(folder: str) -> tuple[str, list[FoundDistribution]]:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - site-packages may have thousands
    except OSError:  # an archive
        from importlib_metadata import MetadataPathFinder

        MetadataPathFinder.invalidate_caches()  # it goes by the time alone, and rounds it
        return "", discover([folder])
    home = f"{Path(folder)}{os.sep}"  # making a path of each takes longer than listing them
    suffixes = (".dist-info", ".egg-info")
    is_egg = folder.lower().endswith(".egg")
    found = [
        FoundDistribution(home + name)
        for name in names
        if name.lower().endswith(suffixes) or (is_egg and name.lower() == "egg-info")
    ]
    return home, found


def _context(path: Sequence[str] | None, name: str | None) -> DistributionFinder.Context:
    """What is asked for, in importlib.metadata's terms; what is not said may be anything."""
    from importlib.metadata import DistributionFinder

    asked: dict[str, Any] = {} if path is None else {"path": list(path)}
    if name is not None:
        asked["name"] = name
    return DistributionFinder.Context(**asked)


def _name_in(place: str) -> str:
    """The name of a distribution as the name of its folder, or file, begins.

    >>> _name_in("/lib/Fake_Dist-1.5.dist-info"), _name_in("/lib/old-2-py3.11.egg/EGG-INFO")
    ('fake-dist', 'old')
    """
    folder, _, name = place.replace(os.sep, "/").rpartition("/")
    if name.lower() == "egg-info":
        name = folder.rpartition("/")[2]
    return normalized(name.rpartition(".")[0].partition("-")[0])


_folders: dict[str, Folder] = {}
"""What this process has listed, by folder."""
