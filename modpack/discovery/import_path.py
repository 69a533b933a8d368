"""How files and folders look to the system: whoever changes one changes that.

What is installed in the folders of the import path: listed again when a folder changes.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from modpack.core.names import normalised_distribution as normalised
from modpack.core.process import current_folder

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


ORIGIN: Final = "direct_url.json"
"""Says where a distribution was installed from (PEP 610): that of an editable one is its code."""

_MOST_FOLDERS: Final = 128
_OF_FOLDERS: Final = ("importlib_metadata", "_frozen_importlib_external")
"""Where the finders come from that look into the folders of a path."""


class Metadata(Protocol):
    """What a distribution says of itself, as :class:`importlib.metadata.Distribution` has it."""

    @property
    def requires(self) -> list[str] | None:
        """What it requires."""

    def read_text(self, filename: str) -> str | None:
        """The text of a file of its metadata; None if there is no such file."""

    def locate_file(self, path: str) -> Any:
        """Where a file is that it lists."""


class Found(NamedTuple):
    """A distribution that is installed.

    Attributes:
        place: the folder of its metadata; empty if that is not known.
        metadata: reads it.
        home: the folder that it is installed in, with a separator at its end, if the metadata are
            files in there, which nobody but the system reads; else empty.
    """

    place: str
    metadata: Metadata
    home: str = ""


class _InFolder:
    """Reads metadata in a folder, as importlib_metadata does, which takes 4 ms to import."""

    def __init__(self, place: str) -> None:
        self._place = place

    @property
    def _path(self) -> Path:
        return Path(self._place)

    @property
    def requires(self) -> list[str] | None:
        from importlib_metadata import PathDistribution

        return PathDistribution(self._path).requires

    def read_text(self, filename: str) -> str | None:
        expected = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
        # A path would take as long as reading does. An old tool's metadata may be one file.
        place = f"{self._place}/{filename}" if filename else self._place
        with contextlib.suppress(*expected), open(place, encoding="utf-8") as file:  # noqa: PTH123
            return file.read()
        return None

    def locate_file(self, path: str) -> Path:
        return self._path.parent / path


@dataclass
class _Folder:
    """What is installed in a folder, and how the folder looked then.

    Attributes:
        status: how it looked.
        is_certain: whether it looks otherwise as soon as anything else is in it.
        found: what is installed in it.
        home: its name with a separator at its end; empty if it is an archive.
    """

    status: Status | None
    is_certain: bool
    found: Sequence[Found]
    home: str

    @cached_property
    def origins(self) -> Sequence[tuple[str, Found]]:
        """The file that each of them would have if it were editable."""
        return [(f"{each.place}/{ORIGIN}", each) for each in self.found]

    @cached_property
    def named(self) -> Mapping[str, Sequence[Found]]:
        """The same by normalised names, as their folders have them."""
        named: dict[str, list[Found]] = {}
        for each in self.found:
            named.setdefault(_name_in(each.place), []).append(each)
        return named


class ImportPath:
    """The distributions that are installed, as it was when this was made.

    What was listed for one export is listed for the next one only where a folder has changed:
    listing a hundred distributions takes as long as saving a small model.

    Args:
        path: the folders to look in; ``sys.path`` if None.
    """

    def __init__(self, path: Sequence[str] | None = None) -> None:
        self._path = path
        self._is_known = _only_folders_count(path)
        entries: Iterable[object] = sys.path if path is None else path
        folders = (entry for entry in entries if isinstance(entry, str) and self._is_known)
        here = current_folder()
        there = (each for each in folders if here is not None or each.startswith(os.sep))
        self._folders = [_looked_at(folder) for folder in there]
        self._editable: dict[str, Sequence[Found]] = {}

    def all(self) -> Sequence[Found]:
        """All of them, in the order of the path."""
        return self._all

    @cached_property
    def _all(self) -> Sequence[Found]:
        if not self._is_known:
            return tuple(_discovered(self._path, None))
        return tuple(chain.from_iterable(folder.found for folder in self._folders))

    def claiming(self, folder: str) -> Iterable[Found]:
        """Those that may have put files into a folder; no other one has.

        Most distributions have nothing to do with most folders: they are installed elsewhere, and
        are not editable. Of those nothing is looked at but whether they might be.
        """
        if not self._is_known:
            return self._all
        return chain.from_iterable(
            each.found if lies_in(folder, each.home) else self._editable_in(each)
            for each in self._folders
        )

    def _editable_in(self, folder: _Folder) -> Sequence[Found]:
        """Those in a folder that may be editable: of each, that is asked once in an export."""
        known = self._editable.get(folder.home)
        if known is None:
            known = [found for file, found in folder.origins if os.access(file, os.F_OK)]
            self._editable[folder.home] = known
        return known

    def named(self, name: str) -> Iterable[Found]:
        """Those of a normalised name, as far as their folders tell."""
        if not self._is_known:
            return _discovered(self._path, name)
        return chain.from_iterable(folder.named.get(name, ()) for folder in self._folders)


def _only_folders_count(path: Sequence[str] | None) -> bool:
    """Whether no other finder, such as that of a loaded package, has anything to tell of."""
    finders = [f for f in sys.meta_path if hasattr(f, "find_distributions")]
    others = [f for f in finders if _module_of(f) not in _OF_FOLDERS]
    if not others:
        return True
    context = _context(path, None)
    return not any(True for finder in others for _ in finder.find_distributions(context))


def lies_in(folder: str, home: str) -> bool:
    """Whether a folder is another one, which is written with a separator, or lies in it."""
    return f"{folder}{os.sep}".startswith(home)


def _module_of(finder: object) -> str:
    return str(getattr(finder, "__module__", ""))


def _looked_at(entry: str) -> _Folder:
    """What is installed in a folder of the path; an empty name is the current folder."""
    folder = entry if entry.startswith(os.sep) else str(Path(entry).absolute())
    status = status_of(folder)
    known = _folders.get(folder)
    if known is None or known.status != status or not known.is_certain:
        found = tuple(_listed(folder)) if status is not None else ()
        home = found[0].home if found else ""
        known = _Folder(status, is_settled(status), found, home)
        if len(_folders) >= _MOST_FOLDERS:
            _folders.clear()
        _folders[folder] = known
    return known


def _listed(folder: str) -> Iterable[Found]:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - site-packages may have thousands
    except OSError:  # an archive
        from importlib_metadata import MetadataPathFinder

        MetadataPathFinder.invalidate_caches()  # it goes by the time alone, and rounds it
        return _discovered([folder], None)
    is_egg = folder.lower().endswith(".egg")
    here = str(Path(folder))  # making a path of each takes longer than listing them
    likely = (name for name in names if _is_metadata(name.lower(), is_egg))
    places = (os.path.join(here, name) for name in likely)  # noqa: PTH118
    return (Found(place, _InFolder(place), f"{here}{os.sep}") for place in places)


def _is_metadata(name: str, in_egg: bool) -> bool:
    return name.endswith((".dist-info", ".egg-info")) or (in_egg and name == "egg-info")


def _discovered(path: Sequence[str] | None, name: str | None) -> Iterable[Found]:
    from importlib_metadata import Distribution

    found = Distribution.discover(context=_context(path, name))
    return (Found(str(getattr(each, "_path", "")), each) for each in found)


def _context(path: Sequence[str] | None, name: str | None) -> Any:
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
    return normalised(name.rpartition(".")[0].partition("-")[0])


_folders: dict[str, _Folder] = {}
"""What this process has listed, by folder."""
