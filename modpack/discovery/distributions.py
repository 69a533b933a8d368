"""Installed distributions: what each is and claims, and which one a module belongs to.

A script next to an editable project, or a module in a folder of examples, is found because of where
Python was started. It is loose code: the project's metadata and requirements are not its own.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from importlib.machinery import PathFinder
from itertools import chain
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from modpack.core.core_metadata import license_of, parse_headers
from modpack.core.graph import Location
from modpack.core.names import RUNTIME_ROOTS, is_stdlib, root_of
from modpack.core.names import normalized_distribution as normalized
from modpack.core.process import normalize_path
from modpack.core.rules import Owner
from modpack.discovery.import_path import (
    ORIGIN,
    Folder,
    FoundDistribution,
    discover,
    folders_on,
    is_settled,
    lies_in,
    status_of,
)

if TYPE_CHECKING:
    from importlib_metadata import Distribution as LibraryDistribution

_OF_EGGS = ("requires.txt", "top_level.txt")
_METADATA = frozenset(
    {"METADATA", "PKG-INFO", "WHEEL", "entry_points.txt", "namespace_packages.txt", *_OF_EGGS}
)
_LICENSE = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|AUTHORS)", re.IGNORECASE)
_LICENSE_FOLDERS = ("licenses", "license_files")
_TELLING = ("METADATA", "PKG-INFO", "RECORD", ORIGIN, *_OF_EGGS, *_LICENSE_FOLDERS)
"""The metadata that is read, files and folders; others come and go with the folder of all."""
_COMPILED = re.compile(r"\.(so|pyd|dll|dylib)(\.\d+)*,")
"""A file of machine code, as a line of a RECORD starts with it."""
_OUTERMOST = re.compile(r"\n([^/,\n]+)")
_LISTED = re.compile(r"\n([^,\n]*),")
_ANOTHER_EXTRA: Final = re.compile(r";.*\bextra\s*==\s*(?:'[^']+'|\"[^\"]+\")")
_OR: Final = re.compile(r"\bor\b")


@dataclass(frozen=True)
class DistributionContents:
    """The files of an installed distribution.

    Attributes:
        folder: the folder that ``listed`` is relative to.
        listed: its files with ``/`` (PEP 376's RECORD); empty if it keeps no list.
        metadata: the metadata files that mean the same everywhere, by their names. What only
            tells of this machine is left out: ``direct_url.json``, ``INSTALLER``.
    """

    folder: Path
    listed: tuple[str, ...] = ()
    metadata: Mapping[str, Path] = field(default_factory=dict)


def metadata_folder(name: str, version: str) -> str:
    """The folder of a distribution's metadata, as installers name it.

    >>> metadata_folder("ruamel.yaml", "0.18.6")
    'ruamel_yaml-0.18.6.dist-info'
    """
    return f"{re.sub(r'[-_.]+', '_', name)}-{version.replace('-', '_')}.dist-info"


def folders_on_path(home: Path, files: Iterable[str]) -> frozenset[str] | None:
    """The folders that an install's path files (``site``) put on the import path.

    Args:
        home: the folder that it is installed in.
        files: the names of the files that it has put there.

    Returns:
        The folders; None if it has no path file, or one that runs code, which may do anything.
    """
    lines = []
    for name in files:
        if name.endswith(".pth"):
            with contextlib.suppress(OSError, ValueError):
                text = (home / name).read_text("utf-8-sig")
                lines += [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines or any(line.startswith(("import ", "import\t")) for line in lines):
        return None
    return frozenset(os.path.normpath(home / line) for line in lines)


def found_through(module: str, place: Path, is_folder: bool) -> str:
    """The folder on the import path through which a module is found.

    Args:
        module: its path.
        place: its file, or its folder if it has no code.
        is_folder: whether it is the folder.

    >>> found_through("shop.cart", Path("/code/src/shop/cart.py"), False)
    '/code/src'
    >>> found_through("shop", Path("/code/src/shop/__init__.py"), False)
    '/code/src'
    """
    is_package = not is_folder and place.name.partition(".")[0] == "__init__"
    parents = (place.parent if is_package else place).parents
    depth = module.count(".")
    return os.path.normpath(parents[depth]) if depth < len(parents) else ""


def required_names(lines: Iterable[str]) -> frozenset[str]:
    """The normalized names in ``Requires-Dist`` lines that count here, without any extra."""
    return frozenset(name for name in map(_required_by, lines) if name is not None)


@lru_cache(maxsize=4096)
def _required_by(line: str) -> str | None:
    """The distribution that a requirement asks for here; None if it does not count.

    Kept from one export to the next: parsing is most of what it takes to know a distribution.
    """
    # Nine of ten count for some extra only.
    if "@" not in line and _ANOTHER_EXTRA.search(line) and not _OR.search(line):
        return None
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return None  # metadata of an old tool: a requirement that pip ignores as well
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        return normalized(requirement.name)
    return None


@dataclass(frozen=True)
class Distribution:
    """An installed distribution.

    Attributes:
        name: its name as it is installed under.
        version: its version.
        editable: whether it is an editable install: its code is the user's own folder.
        requires: the normalized names of the distributions that it requires.
    """

    name: str
    version: str
    editable: bool = False
    requires: frozenset[str] = frozenset()

    @property
    def pin(self) -> str:
        """What to give to pip: ``numpy==2.1.0``."""
        return f"{self.name}=={self.version}"


class LazyDistribution:
    """One installed distribution, its metadata read piece by piece as it is needed.

    Args:
        place: the folder of its metadata, or the file; empty if it has none.
        library: reads its metadata, where that are no files in a folder.
    """

    def __init__(self, place: str, library: LibraryDistribution | None = None) -> None:
        self.place = place
        self._library = library
        folder = status_of(place)
        files = {name: status_of(name) for name in (f"{place}/{each}" for each in _TELLING)}
        # What is missing cannot come without a trace in a folder that has not changed of late.
        telling = {f: s for f, s in files.items() if s is not None or not is_settled(folder)}
        self._statuses = {place: folder, **telling}
        # Nearly none has it, and reading what is not there takes its time.
        self._may_have_origin = folder is None or files[f"{place}/{ORIGIN}"] is not None

    @classmethod
    def of(cls, found: FoundDistribution) -> LazyDistribution:
        """The installation, with what is known of it from another time, if it has not changed."""
        known = _known.get(found.place)
        if known is None or not known._is_current():
            known = _known[found.place] = cls(*found)
        return known

    def _is_current(self) -> bool:
        """Whether all that was read looks the same now."""
        then = self._statuses
        return then[self.place] is not None and all(map(eq, map(status_of, then), then.values()))

    def _note(self, files: Iterable[str]) -> None:
        """Note how further files look that are about to be read; other threads may compare."""
        self._statuses = {**self._statuses, **{file: status_of(file) for file in files}}

    def lists(self, module: str, file: str, is_folder: bool = False) -> bool:
        """Whether the distribution claims a file, or something in a folder."""
        if self.source_folder is not None:
            return self._has_source(module, file, is_folder)
        if not file.startswith(self._home):
            return False
        if not self._roots:  # installed by a tool that keeps no record: all it has is a list
            return root_of(module) in self.top_level
        listed = file[len(self._home) :].replace(os.sep, "/")
        return listed in (self._folders if is_folder else self._listed)

    def has_published(self, file: str, content: bytes) -> bool:
        """Whether an index has a file with this content: it was installed from there like that.

        What was installed from somewhere else, such as a folder, says so (PEP 610); what an
        index gave away has its digest in the RECORD.
        """
        has_origin = self._may_have_origin and self.text(ORIGIN)
        if has_origin or not file.startswith(self._home):
            return False
        listed = file[len(self._home) :].replace(os.sep, "/")
        row = re.search(f"\n{re.escape(listed)},sha256=([\\w-]+)", self._record())
        if row is None:
            return False
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
        return row[1] == digest.decode("ascii").rstrip("=")

    def _has_source(self, module: str, file: str, is_folder: bool) -> bool:
        """Whether something in the folder of an editable install is importable through it."""
        if not lies_in(os.path.normcase(file), self._source_home):
            return False  # as of most: paths are not made of all that is asked for
        place = Path(file)
        if in_site_packages(place):
            return False
        if self.top_level:
            return root_of(module) in self.top_level
        known = self._on_path
        return known is None or found_through(module, place, is_folder) in known

    def may_have(self, folder: str) -> bool:
        """Whether the distribution can claim files in a folder."""
        if self.source_folder is not None:
            return True
        if not lies_in(folder, self._home):
            return False
        inside = folder[len(self._home) :].replace(os.sep, "/")
        if not inside or not self._roots:
            return True
        # Nearly all distributions fail here, by the outermost folder.
        return inside.partition("/")[0] in self._roots and inside in self._folders

    @cached_property
    def _lists_compiled_code(self) -> bool:
        return _COMPILED.search(self._record()) is not None

    @property
    def has_compiled_code(self) -> bool:
        """Whether it lists a file of machine code."""
        if self._roots:
            return self._lists_compiled_code
        files = (file for root in self.top_level for file in (self.folder / root).rglob("*"))
        return any(_COMPILED.search(f"{file},") for file in files)

    @cached_property
    def described(self) -> Distribution | None:
        """What its metadata says; None if that cannot be read, as after a broken install."""
        said = self._headers
        name, version = said.get("name", [""])[0], said.get("version", [""])[0]
        if not name or not version:
            return None
        lines = said.get("requires-dist") or ()
        if not lines and self.text("requires.txt"):  # of an egg
            from importlib_metadata import PathDistribution

            lines = (self._library or PathDistribution(Path(self.place))).requires or ()
        return Distribution(name, version, self.source_folder is not None, required_names(lines))

    @cached_property
    def _headers(self) -> Mapping[str, Sequence[str]]:
        return parse_headers(self.text("METADATA") or self.text("PKG-INFO") or self.text(""))

    @property
    def license(self) -> str | None:
        """The license that its metadata states; None if it states none."""
        return license_of(self._headers)

    @cached_property
    def contents(self) -> DistributionContents:
        """Its files and its metadata; an egg's have the names that a wheel's have."""
        places = os.walk(self.place)
        self._note(f"{place}/{name}" for place, names, _ in places for name in names)
        listed = [row[0] for row in csv.reader(self.text("RECORD").splitlines()) if row]
        metadata = {}
        home = Path(self.place)
        for file in sorted(home.rglob("*")) if self.place and home.is_dir() else ():
            name = file.relative_to(home).as_posix()
            top = name.partition("/")[0]
            is_license = top in _LICENSE_FOLDERS if "/" in name else bool(_LICENSE.match(name))
            if (name in _METADATA or is_license) and file.is_file():
                metadata["METADATA" if name == "PKG-INFO" else name] = file
        return DistributionContents(self.folder, tuple(listed), metadata)

    @cached_property
    def folder(self) -> Path:
        """What its record is relative to."""
        if self._library is None:
            return Path(self.place).parent
        return Path(str(self._library.locate_file(""))).absolute()

    @cached_property
    def _home(self) -> str:
        """The folder as paths of files in it begin: asked of each folder of the plan."""
        return f"{self.folder}{os.sep}"

    @cached_property
    def _source_home(self) -> str:
        """The folder of an editable install as paths of files in it begin."""
        return os.path.normcase(os.path.join(self.source_folder or "", ""))  # noqa: PTH118

    @cached_property
    def _roots(self) -> frozenset[str]:
        """The outermost folders, and files, that it lists; nothing if it has no record."""
        return frozenset(_OUTERMOST.findall(self._record()))

    @cached_property
    def _on_path(self) -> frozenset[str] | None:
        """The folders that an editable install puts on the import path, if it says so."""
        names = (f"{self._home}{name}" for name in self._roots if name.endswith(".pth"))
        self._note(names)
        return folders_on_path(self.folder, self._roots)

    @cached_property
    def _listed(self) -> frozenset[str]:
        """Its files; a set, because each module of a distribution is looked up."""
        return frozenset(_LISTED.findall(self._record()))

    @cached_property
    def _folders(self) -> frozenset[str]:
        """The folders that these are in, at any depth."""
        folders: set[str] = set()
        for folder in {name.rpartition("/")[0] for name in self._listed}:
            while folder and folder not in folders:
                folders.add(folder)
                folder = folder.rpartition("/")[0]
        return frozenset(folders)

    def _record(self) -> str:
        """Its RECORD (PEP 376), each line behind a line feed; empty if it has none.

        It is not kept: those of large distributions have megabytes.
        """
        listed = self.text("RECORD")
        return "\n" + listed if listed else ""

    @cached_property
    def top_level(self) -> frozenset[str]:
        """The modules that an old tool says it has installed."""
        return frozenset(self.text("top_level.txt").split())

    @cached_property
    def origin(self) -> Mapping[str, Any]:
        """What pip was given to install it (PEP 610); empty if it came from an index."""
        try:
            origin = json.loads(self.text(ORIGIN) or "{}") if self._may_have_origin else {}
        except ValueError:  # not as PEP 610 has it
            return {}
        return origin if isinstance(origin, dict) else {}

    @cached_property
    def source_folder(self) -> Path | None:
        """The folder of an editable install; None for all others."""
        try:
            if not self.origin.get("dir_info", {}).get("editable", False):
                return None
            from urllib.request import url2pathname  # it brings networking along

            return Path(url2pathname(urlsplit(self.origin["url"]).path))
        except (ValueError, KeyError, AttributeError):  # not as PEP 610 has it
            return None

    def text(self, name: str) -> str:
        """The text of a file of its metadata; empty if it cannot be read."""
        try:
            if self._library is not None:
                return self._library.read_text(name) or ""
            # As importlib_metadata does, but without a path of each, which takes as long as
            # reading. An old tool's metadata may be one file.
            place = f"{self.place}/{name}" if name else self.place
            with open(place, encoding="utf-8") as file:  # noqa: PTH123
                return file.read()
        except (OSError, ValueError):
            return ""


def in_site_packages(file: Path) -> bool:
    """Whether a file is where tools install."""
    return any(part in ("site-packages", "dist-packages") for part in file.parts)


_known: dict[str, LazyDistribution] = {}
"""What this process has seen, by the folder of metadata."""


def _is_elsewhere(root: str) -> bool:
    """Whether a file of the user's has the name of a standard library module and wins."""
    loaded = sys.modules.get(root)
    if loaded is None:
        spec = PathFinder.find_spec(root) if root not in sys.builtin_module_names else None
    else:
        spec = getattr(loaded, "__spec__", None)
    origin = getattr(spec, "origin", None)
    if not isinstance(origin, str) or not os.path.isfile(origin):  # noqa: PTH113
        return False  # built in, frozen, zipped, or not there at all
    return not _is_in_standard_library(origin)


def _is_in_standard_library(file: str) -> bool:
    """Whether a file lies where Python's own are."""
    return _is_folder_of_python(os.path.dirname(file))  # noqa: PTH120 - asked for each module


@lru_cache(maxsize=1024)
def _is_folder_of_python(folder: str) -> bool:
    home = Path(os.__file__).parent
    return Path(folder).is_relative_to(home) and not in_site_packages(Path(folder))


class DistributionIndex:
    """The installed distributions, by the files that they list as theirs.

    Asking each distribution's RECORD (PEP 376) for one file is much cheaper than
    ``packages_distributions()``, which reads all of them line by line, and exact: a loose file
    that has the name of an installed module belongs to nobody. Metadata is read on first use.

    Args:
        path: the folders in which distributions are looked for; ``sys.path`` if None.
    """

    def __init__(self, path: Sequence[str] | None = None) -> None:
        self._path = path
        self._owners: dict[tuple[str, str], Distribution | None] = {}
        self._is_shadowed = cache(_is_elsewhere)
        self._closures: dict[str, frozenset[str]] = {}
        self._named: dict[str, LazyDistribution | None] = {}
        self._met_before: dict[str, LazyDistribution] = {}
        self._candidates: dict[str, tuple[LazyDistribution, ...]] = {}
        self._editable: dict[str, Sequence[FoundDistribution]] = {}

    def owner(self, module: str, location: Location | None) -> Owner:
        """Who is responsible for a module, where it was found."""
        if is_stdlib(module) and not self._is_shadowed(root_of(module)):
            return Owner.STDLIB
        if root_of(module) in RUNTIME_ROOTS:
            return Owner.RUNTIME
        distribution = self.distribution_of(module, location)
        if distribution is not None and not distribution.editable:
            return Owner.INSTALLED
        file = location.file if location is not None and distribution is None else None
        # Its tests are no names of it: a user's own package may well be called ``test``.
        is_python_s = file is not None and _is_in_standard_library(file)
        return Owner.STDLIB if is_python_s else Owner.LOCAL

    def distribution_of(self, module: str, location: Location | None) -> Distribution | None:
        """The distribution that provides a module; None for loose code."""
        if location is None:
            return None
        key = module, location.file or "\0".join(location.search)
        if key not in self._owners:
            self._owners[key] = self._search(module, location)
        return self._owners[key]

    def named(self, name: str) -> Distribution | None:
        """The installed distribution of that name (PEP 503); None if there is none."""
        entry = self._entry_named(normalized(name))
        return entry.described if entry is not None else None

    def is_compiled(self, distribution: Distribution) -> bool:
        """Whether a distribution has installed compiled code."""
        entry = self.installation_of(distribution)
        return entry is not None and entry.has_compiled_code

    def contents_of(self, distribution: Distribution) -> DistributionContents | None:
        """The files of an installed distribution; None if it is not installed (any more)."""
        entry = self.installation_of(distribution)
        return entry.contents if entry is not None else None

    def license_of(self, distribution: Distribution) -> str | None:
        """The license that an installed distribution's metadata states; None if none."""
        entry = self.installation_of(distribution)
        return entry.license if entry is not None else None

    def installation_of(self, distribution: Distribution) -> LazyDistribution | None:
        """Where a distribution is installed; the first place, if there are several."""
        first = self._entry_named(normalized(distribution.name))
        if first is not None and first.described == distribution:
            return first
        entries = self.installations()
        return next((entry for entry in entries if entry.described == distribution), None)

    def installations(self) -> Iterator[LazyDistribution]:
        """All that is installed, in the order of the path."""
        return map(self._met, self._found)

    def _entry_named(self, name: str) -> LazyDistribution | None:
        """The first distribution of a name: found by its folder's, not by reading all metadata."""
        if name not in self._named:
            if self._folders is None:
                found = discover(self._path, name)
            else:
                found = [each for folder in self._folders for each in folder.named.get(name, ())]
            entries = map(self._met, found)
            self._named[name] = next((e for e in entries if e.described is not None), None)
        return self._named[name]

    @cached_property
    def _folders(self) -> Sequence[Folder] | None:
        """What is installed when that is first asked; None if it is not in folders alone."""
        return folders_on(self._path)

    @cached_property
    def _found(self) -> Sequence[FoundDistribution]:
        if self._folders is None:
            return discover(self._path)
        return [each for folder in self._folders for each in folder.found]

    def _met(self, found: FoundDistribution) -> LazyDistribution:
        """An installation; whether what is known of it still holds is asked once."""
        if not found.place:  # it is not in files
            return LazyDistribution.of(found)
        if found.place not in self._met_before:
            self._met_before[found.place] = LazyDistribution.of(found)
        return self._met_before[found.place]

    def is_published(self, file: str, content: bytes) -> bool:
        """Whether an index has a file with this content, where others can get it as well."""
        place = normalize_path(file)
        return any(entry.has_published(place, content) for entry in self._claiming(place))

    def required_closure(self, distribution: Distribution) -> frozenset[str]:
        """The normalized names of all that a distribution requires, directly or not."""
        if distribution.name not in self._closures:
            self._closures[distribution.name] = self._close(distribution)
        return self._closures[distribution.name]

    def _close(self, distribution: Distribution) -> frozenset[str]:
        reached: set[str] = set()
        todo = [distribution.requires]
        while todo:
            for name in todo.pop() - reached:
                reached.add(name)
                found = self.named(name)
                if found is not None:
                    todo.append(found.requires)
        return frozenset(reached)

    def _claiming(self, file: str) -> tuple[LazyDistribution, ...]:
        """The distributions that may have installed a file: the same for all files beside it."""
        folder = os.path.dirname(file)  # noqa: PTH120 - asked for every module
        if folder not in self._candidates:
            near = map(self._met, self._near(folder))
            self._candidates[folder] = tuple(entry for entry in near if entry.may_have(folder))
        return self._candidates[folder]

    def _near(self, folder: str) -> Iterable[FoundDistribution]:
        """Those that may have put files into a folder; no other one has.

        Most distributions have nothing to do with most folders: they are installed elsewhere, and
        are not editable. Of those nothing is looked at but whether they might be.
        """
        if self._folders is None:
            return self._found
        return chain.from_iterable(
            each.found if lies_in(folder, each.home) else self._editable_in(each)
            for each in self._folders
        )

    def _editable_in(self, folder: Folder) -> Sequence[FoundDistribution]:
        """Those in a folder that may be editable: of each, that is asked once in an export."""
        if folder.home not in self._editable:
            files = ((f"{each.place}/{ORIGIN}", each) for each in folder.found)
            found = [each for file, each in files if os.access(file, os.F_OK)]
            self._editable[folder.home] = found
        return self._editable[folder.home]

    def _search(self, module: str, location: Location) -> Distribution | None:
        """Who claims a module's file; of a folder without code, whoever claims something in it.

        Such a folder may have parts in several places: it is nobody's as soon as one of them is.
        """
        if location.file:
            return self._claimant(module, normalize_path(location.file), False)
        owners = [self._claimant(module, normalize_path(each), True) for each in location.search]
        return None if None in owners else next(iter(owners), None)

    def _claimant(self, module: str, place: str, is_folder: bool) -> Distribution | None:
        for entry in self._claiming(place):
            if entry.lists(module, place, is_folder) and entry.described is not None:
                return entry.described
        return None
