"""Installed distributions: their metadata and files, and the distribution of each module.

A script next to an editable project, or a module in a folder of examples, is importable only
because of the current folder. It is loose code: the project's metadata does not apply to it.
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
from functools import cache, cached_property, lru_cache
from importlib.machinery import PathFinder
from itertools import chain
from operator import eq, ge, gt, le, lt
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from modpack.core.core_metadata import license_of, parse_headers
from modpack.core.graph import Location
from modpack.core.names import is_runtime, is_stdlib, normalized, root_of
from modpack.core.process import normalize_path
from modpack.core.rules import Owner
from modpack.discovery.import_path import (
    ORIGIN,
    Folder,
    is_mtime_reliable,
    is_within,
    read_folders,
    status_of,
)

_EGG_FILES = ("requires.txt", "top_level.txt")
_METADATA = frozenset(
    {"METADATA", "PKG-INFO", "WHEEL", "entry_points.txt", "namespace_packages.txt", *_EGG_FILES}
)
_LICENSE = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|AUTHORS)", re.IGNORECASE)
_LICENSE_FOLDERS = ("licenses", "license_files")
_WATCHED_FILES = ("METADATA", "PKG-INFO", "RECORD", ORIGIN, *_EGG_FILES, *_LICENSE_FOLDERS)
"""Metadata files and folders whose changes are detected. Other changes affect the folder itself."""
_NATIVE_FILE = re.compile(r"\.(so|pyd|dll|dylib)(\.\d+)*,")
"""A native extension or library at the start of a RECORD line."""
_TOP_LEVEL = re.compile(r'\n"?([^/,\n]+)')
_LISTED_FILE = re.compile(r"\n([^,\n]*),")
_EXTRA_MARKER: Final = re.compile(r";.*\bextra\s*==\s*(?:'[^']+'|\"[^\"]+\")")
_OR_MARKER: Final = re.compile(r"\bor\b")


_SPECIFIER: Final = r"(?:(?:==|!=|<=?|>=?)[ \t]*\d+(?:\.\d+)*|~=[ \t]*\d+(?:\.\d+)+)[ \t]*"
_SPECIFIERS: Final = rf"{_SPECIFIER}(?:,[ \t]*{_SPECIFIER})*"
_PLAIN_REQUIREMENT: Final = (
    rf"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)[ \t]*(?:\([ \t]*{_SPECIFIERS}\)[ \t]*|{_SPECIFIERS})?"
    r"(?:;[ \t]*python_version[ \t]*([<>]=?)[ \t]*([\"'])(\d)\.(\d+)\3[ \t]*)?"
)
"""The usual form of a requirement, for example each of torch's. The library `packaging` reads the
others: its import takes 12 ms, a tenth of the first save of a process."""
_COMPARISONS: Final = {"<": lt, "<=": le, ">": gt, ">=": ge}


class DistributionContents(NamedTuple):
    """The files of an installed distribution.

    Attributes:
        folder: Folder that ``listed`` is relative to.
        listed: Files with ``/`` (RECORD, PEP 376); empty without a RECORD.
        metadata: Portable metadata files by name. Files about this installation are left out, such
            as ``direct_url.json`` and ``INSTALLER``.
    """

    folder: Path
    listed: tuple[str, ...] = ()
    metadata: Mapping[str, Path] = MappingProxyType({})


def metadata_folder(name: str, version: str) -> str:
    """Return the name of a distribution's metadata folder.

    >>> metadata_folder("ruamel.yaml", "0.18.6")
    'ruamel_yaml-0.18.6.dist-info'
    """
    return f"{re.sub(r'[-_.]+', '_', name)}-{version.replace('-', '_')}.dist-info"


def pth_folders(folder: Path, files: Iterable[str]) -> frozenset[str] | None:
    """Return the folders that a distribution's path files (``site``) add to the import path.

    Args:
        folder: Folder that the distribution is installed in.
        files: Names of its files in that folder.

    Returns:
        The folders; None if there is no path file, or one that runs code.
    """
    lines = []
    for name in files:
        if name.endswith(".pth"):
            with contextlib.suppress(OSError, ValueError):
                text = (folder / name).read_text("utf-8-sig")
                lines += [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines or any(line.startswith(("import ", "import\t")) for line in lines):
        return None
    return frozenset(os.path.normpath(folder / line) for line in lines)


def import_root(module: str, path: Path, is_folder: bool) -> str:
    """Return the folder on the import path that a module is found in.

    Args:
        module: Module path.
        path: File of the module, or folder of a namespace package.
        is_folder: Whether ``path`` is a folder.

    >>> import_root("shop.cart", Path("/code/src/shop/cart.py"), False)
    '/code/src'
    >>> import_root("shop", Path("/code/src/shop/__init__.py"), False)
    '/code/src'
    """
    is_package = not is_folder and path.name.partition(".")[0] == "__init__"
    parents = (path.parent if is_package else path).parents
    depth = module.count(".")
    return os.path.normpath(parents[depth]) if depth < len(parents) else ""


def required_names(lines: Iterable[str]) -> frozenset[str]:
    """Return the normalized names in ``Requires-Dist`` lines that apply here without extras."""
    return frozenset(name for name in map(_required_name, lines) if name is not None)


@lru_cache(maxsize=4096)
def _required_name(line: str) -> str | None:
    """Return the normalized name in a requirement; None if it does not apply here.

    Cached across exports: parsing requirements takes most of the time to read a distribution.
    """
    plain = re.fullmatch(_PLAIN_REQUIREMENT, line, re.ASCII)
    if plain is not None:
        name, comparison, _, *version = plain.groups()
        applies = comparison is None or _COMPARISONS[comparison](
            sys.version_info[:2], tuple(map(int, version))
        )
        return normalized(name) if applies else None
    # Nine of ten requirements apply only with an extra.
    if "@" not in line and _EXTRA_MARKER.search(line) and not _OR_MARKER.search(line):
        return None
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return None  # invalid metadata of an old tool, which pip ignores as well
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        return normalized(requirement.name)
    return None


class InstalledDistribution(NamedTuple):
    """An installed distribution.

    Attributes:
        name: Name in its metadata.
        version: Version.
        editable: Whether it is an editable install, whose code is in the user's own folder.
        requires: Normalized names of the distributions that it requires.
    """

    name: str
    version: str
    editable: bool = False
    requires: frozenset[str] = frozenset()

    @property
    def pin(self) -> str:
        """Requirement for pip: ``numpy==2.1.0``."""
        return f"{self.name}=={self.version}"


class LazyDistribution:
    """An installed distribution whose metadata is read on demand.

    Args:
        path: Metadata folder or file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        folder = status_of(path)
        files = {name: status_of(name) for name in (f"{path}/{each}" for each in _WATCHED_FILES)}
        # A missing file cannot appear unnoticed in a folder whose mtime is reliable.
        watched = {f: s for f, s in files.items() if s is not None or not is_mtime_reliable(folder)}
        self._statuses = {path: folder, **watched}
        # Few distributions have one, and trying to read a missing file takes time.
        self._may_have_origin = files[f"{path}/{ORIGIN}"] is not None

    @classmethod
    def cached(cls, path: str) -> LazyDistribution:
        """Return the cached distribution if it has not changed; otherwise a new one."""
        entry = _cache.get(path)
        if entry is None or not entry._is_current():
            entry = _cache[path] = cls(path)
        return entry

    def _is_current(self) -> bool:
        """Return whether all watched files are unchanged."""
        then = self._statuses
        return then[self.path] is not None and all(map(eq, map(status_of, then), then.values()))

    def _watch(self, files: Iterable[str]) -> None:
        """Watch further files. The dictionary is replaced because other threads may read it."""
        self._statuses = {**self._statuses, **{file: status_of(file) for file in files}}

    def claims(self, module: str, file: str, is_folder: bool = False) -> bool:
        """Return whether the distribution contains a file, or a file in a folder."""
        if self.source_folder is not None:
            return self._has_source(module, file, is_folder)
        if not file.startswith(self._prefix):
            return False
        if not self._roots:  # no RECORD: only top_level.txt is available
            return root_of(module) in self.top_level
        listed = file[len(self._prefix) :].replace(os.sep, "/")
        return listed in (self._folders if is_folder else self._listed_files)

    def _has_source(self, module: str, file: str, is_folder: bool) -> bool:
        """Return whether a file of an editable install's folder is importable through it."""
        if not is_within(os.path.normcase(file), self._source_prefix):
            return False  # checked first, because creating a Path takes longer
        path = Path(file)
        if is_in_site_packages(path):
            return False
        if self.top_level:
            return root_of(module) in self.top_level
        known = self._on_path
        return known is None or import_root(module, path, is_folder) in known

    def publishes(self, file: str, data: bytes) -> bool:
        """Return whether an index contains a file of this distribution with these contents.

        The digest in RECORD shows that the file is unchanged since the installation. A
        distribution with a direct URL (PEP 610) is from a folder or a repository, which may be
        private.
        """
        if self.origin or not file.startswith(self._prefix):
            return False
        name = file[len(self._prefix) :].replace(os.sep, "/")
        rows = csv.reader(self.text("RECORD").splitlines())
        recorded = next((row[1] for row in rows if len(row) > 1 and row[0] == name), "")
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
        return recorded == f"sha256={digest.decode()}"

    def may_claim(self, folder: str) -> bool:
        """Return whether the distribution may contain files in a folder."""
        if self.source_folder is not None:
            return True
        if not is_within(folder, self._prefix):
            return False
        inside = folder[len(self._prefix) :].replace(os.sep, "/")
        if not inside or not self._roots:
            return True
        # The top-level folder excludes nearly all distributions.
        return inside.partition("/")[0] in self._roots and inside in self._folders

    @cached_property
    def _lists_native_code(self) -> bool:
        return _NATIVE_FILE.search(self._record()) is not None

    @property
    def has_native_code(self) -> bool:
        """Whether the distribution contains a native extension or library."""
        if self._roots:
            return self._lists_native_code
        files = (file for root in self.top_level for file in (self.folder / root).rglob("*"))
        # The pattern ends with the comma that follows a name in RECORD.
        return any(_NATIVE_FILE.search(f"{file},") for file in files)

    @cached_property
    def distribution(self) -> InstalledDistribution | None:
        """Name, version, and requirements; None if the metadata cannot be read."""
        fields = self._headers
        name, version = fields.get("name", [""])[0], fields.get("version", [""])[0]
        if not name or not version:
            return None
        lines = fields.get("requires-dist") or ()
        if not lines and self.text("requires.txt"):  # an egg
            from importlib.metadata import PathDistribution

            lines = PathDistribution(Path(self.path)).requires or ()
        return InstalledDistribution(
            name, version, self.source_folder is not None, required_names(lines)
        )

    @cached_property
    def _headers(self) -> Mapping[str, Sequence[str]]:
        return parse_headers(self.text("METADATA") or self.text("PKG-INFO") or self.text(""))

    @property
    def license(self) -> str | None:
        """License in the metadata; None if there is none."""
        return license_of(self._headers)

    @cached_property
    def contents(self) -> DistributionContents:
        """Files and metadata. An egg's ``PKG-INFO`` is named ``METADATA``."""
        # Changes in a subfolder do not affect the status of the folder above it.
        folders = os.walk(self.path)
        self._watch(f"{path}/{name}" for path, names, _ in folders for name in names)
        listed = [row[0] for row in csv.reader(self.text("RECORD").splitlines()) if row]
        metadata = {}
        root = Path(self.path)
        for file in sorted(root.rglob("*")) if root.is_dir() else ():
            name = file.relative_to(root).as_posix()
            top = name.partition("/")[0]
            is_license = top in _LICENSE_FOLDERS if "/" in name else bool(_LICENSE.match(name))
            if (name in _METADATA or is_license) and file.is_file():
                metadata["METADATA" if name == "PKG-INFO" else name] = file
        return DistributionContents(self.folder, tuple(listed), metadata)

    @cached_property
    def folder(self) -> Path:
        """Folder that the RECORD is relative to."""
        return Path(self.path).parent

    @cached_property
    def _prefix(self) -> str:
        """Folder with a trailing separator, as a prefix of its files' paths."""
        return f"{self.folder}{os.sep}"

    @cached_property
    def _source_prefix(self) -> str:
        """Folder of an editable install with a trailing separator."""
        return os.path.normcase(os.path.join(self.source_folder or "", ""))  # noqa: PTH118

    @cached_property
    def _roots(self) -> frozenset[str]:
        """Top-level folders and files in RECORD; empty without one."""
        return frozenset(_TOP_LEVEL.findall(self._record()))

    @cached_property
    def _on_path(self) -> frozenset[str] | None:
        """Folders that an editable install adds to the import path, if known."""
        names = (f"{self._prefix}{name}" for name in self._roots if name.endswith(".pth"))
        self._watch(names)
        return pth_folders(self.folder, self._roots)

    @cached_property
    def _listed_files(self) -> frozenset[str]:
        """Files in RECORD, as a set for fast lookups."""
        record = self._record()
        listed = _LISTED_FILE.findall(record)
        # Names with commas or quotes are in quotes. The csv module takes twice as long for all.
        if '\n"' in record:
            listed += [row[0] for row in csv.reader(record.splitlines()) if row]
        return frozenset(listed)

    @cached_property
    def _folders(self) -> frozenset[str]:
        """All folders that contain files in RECORD."""
        folders: set[str] = set()
        for folder in {name.rpartition("/")[0] for name in self._listed_files}:
            while folder and folder not in folders:
                folders.add(folder)
                folder = folder.rpartition("/")[0]
        return frozenset(folders)

    def _record(self) -> str:
        """Return RECORD (PEP 376) with a line feed before each line; empty if there is none.

        The text is not cached, because those of large distributions have megabytes.
        """
        listed = self.text("RECORD")
        return "\n" + listed if listed else ""

    @cached_property
    def top_level(self) -> frozenset[str]:
        """Top-level modules according to ``top_level.txt``."""
        return frozenset(self.text("top_level.txt").split())

    @cached_property
    def origin(self) -> Mapping[str, Any]:
        """Direct URL origin (PEP 610); empty for a distribution from an index."""
        try:
            origin = json.loads(self.text(ORIGIN) or "{}") if self._may_have_origin else {}
        except ValueError:  # violates PEP 610
            return {}
        return origin if isinstance(origin, dict) else {}

    @cached_property
    def source_folder(self) -> Path | None:
        """Source folder of an editable install; None for others."""
        try:
            if not self.origin.get("dir_info", {}).get("editable", False):
                return None
            from urllib.request import url2pathname  # imports networking modules

            return Path(url2pathname(urlsplit(self.origin["url"]).path))
        except (ValueError, KeyError, AttributeError):  # violates PEP 610
            return None

    def text(self, name: str) -> str:
        """Return the text of a metadata file; empty if it cannot be read."""
        try:
            # Like importlib.metadata, but without Path objects, which take as long as reading.
            # Metadata in the egg-info format may be a single file.
            path = f"{self.path}/{name}" if name else self.path
            with open(path, encoding="utf-8") as file:  # noqa: PTH123
                return file.read()
        except (OSError, ValueError):
            return ""


def is_in_site_packages(file: Path) -> bool:
    """Return whether a file is in a site-packages folder."""
    return any(part in ("site-packages", "dist-packages") for part in file.parts)


_cache: dict[str, LazyDistribution] = {}
"""Distributions seen in this process, by metadata folder."""


def _is_stdlib_shadowed(root: str) -> bool:
    """Return whether a file outside of the standard library shadows a module of it."""
    loaded = sys.modules.get(root)
    if loaded is None:
        # Searching a top-level name imports nothing.
        spec = PathFinder.find_spec(root) if root not in sys.builtin_module_names else None
    else:
        spec = getattr(loaded, "__spec__", None)
    origin = getattr(spec, "origin", None)
    if not isinstance(origin, str) or not os.path.isfile(origin):  # noqa: PTH113
        return False  # built in, frozen, in a zip archive, or missing
    return not _is_in_stdlib(origin)


def _is_in_stdlib(file: str) -> bool:
    """Return whether a file is in the standard library."""
    return _is_stdlib_folder(os.path.dirname(file))  # noqa: PTH120 - called for each module


@lru_cache(maxsize=1024)
def _is_stdlib_folder(folder: str) -> bool:
    root = Path(os.__file__).parent
    return Path(folder).is_relative_to(root) and not is_in_site_packages(Path(folder))


class DistributionIndex:
    """An index that finds the distribution that owns a file.

    Searching RECORDs (PEP 376) for one file is much faster than ``packages_distributions()``, which
    reads all of them line by line. It is also more exact: a loose file is not attributed to a
    distribution with a module of that name. Distributions without a RECORD are matched by their
    ``top_level.txt``. Metadata is read on first use.

    Args:
        path: Folders that are searched for distributions. Default: ``sys.path``.
    """

    def __init__(self, path: Sequence[str] | None = None) -> None:
        self._path = path
        self._owners: dict[tuple[str, str], InstalledDistribution | None] = {}
        self._is_shadowed = cache(_is_stdlib_shadowed)
        self._closures: dict[str, frozenset[str]] = {}
        self._named: dict[str, LazyDistribution | None] = {}
        self._entries: dict[str, LazyDistribution] = {}
        self._candidates: dict[str, tuple[LazyDistribution, ...]] = {}
        self._editable: dict[str, Sequence[str]] = {}

    def owner(self, module: str, location: Location | None) -> Owner:
        """Return the owner of a module at its location."""
        # By name and by location: a user's own ``statistics.py`` may shadow the standard library's.
        if is_stdlib(module) and not self._is_shadowed(root_of(module)):
            return Owner.STDLIB
        if is_runtime(module):
            return Owner.RUNTIME
        distribution = self.distribution_of(module, location)
        if distribution is not None and not distribution.editable:
            return Owner.INSTALLED
        file = location.file if location is not None and distribution is None else None
        # ``test`` is not a standard-library name, because a user's package may have this name.
        is_stdlib_file = file is not None and _is_in_stdlib(file)
        return Owner.STDLIB if is_stdlib_file else Owner.LOCAL

    def distribution_of(
        self, module: str, location: Location | None
    ) -> InstalledDistribution | None:
        """Return the distribution that provides a module; None for loose code."""
        if location is None:
            return None
        key = module, location.file or "\0".join(location.search)
        if key not in self._owners:
            self._owners[key] = self._find_owner(module, location)
        return self._owners[key]

    def publisher_of(self, file: Path, data: bytes) -> InstalledDistribution | None:
        """Return the distribution from an index that contains a file with these contents."""
        path = normalize_path(str(file))
        entries = self._claiming(path)
        return next((each.distribution for each in entries if each.publishes(path, data)), None)

    def named(self, name: str) -> InstalledDistribution | None:
        """Return the installed distribution of a name (PEP 503); None if there is none."""
        entry = self._entry_named(normalized(name))
        return entry.distribution if entry is not None else None

    def has_native_code(self, distribution: InstalledDistribution) -> bool:
        """Return whether a distribution contains a native extension or library."""
        entry = self.installation_of(distribution)
        return entry is not None and entry.has_native_code

    def contents_of(self, distribution: InstalledDistribution) -> DistributionContents | None:
        """Return the files of a distribution; None if it is not installed."""
        entry = self.installation_of(distribution)
        return entry.contents if entry is not None else None

    def installation_of(self, distribution: InstalledDistribution) -> LazyDistribution | None:
        """Return the installation of a distribution; the first one if there are several."""
        first = self._entry_named(normalized(distribution.name))
        if first is not None and first.distribution == distribution:
            return first
        entries = self.installations()
        return next((entry for entry in entries if entry.distribution == distribution), None)

    def installations(self) -> Iterator[LazyDistribution]:
        """Return all installed distributions in the order of the path."""
        return map(self._entry, chain.from_iterable(each.found for each in self._folders))

    def _entry_named(self, name: str) -> LazyDistribution | None:
        """Return the first distribution of a name, found by the name of its metadata folder."""
        if name not in self._named:
            found = (each for folder in self._folders for each in folder.by_name.get(name, ()))
            entries = map(self._entry, found)
            self._named[name] = next((e for e in entries if e.distribution is not None), None)
        return self._named[name]

    @cached_property
    def _folders(self) -> Sequence[Folder]:
        """Folders of the path on first use."""
        return read_folders(self._path)

    def _entry(self, path: str) -> LazyDistribution:
        """Return a distribution whose cached state is checked once for this index."""
        if path not in self._entries:
            self._entries[path] = LazyDistribution.cached(path)
        return self._entries[path]

    def required_closure(self, distribution: InstalledDistribution) -> frozenset[str]:
        """Return the normalized names of a distribution's direct and indirect requirements."""
        if distribution.name not in self._closures:
            self._closures[distribution.name] = self._compute_closure(distribution)
        return self._closures[distribution.name]

    def _compute_closure(self, distribution: InstalledDistribution) -> frozenset[str]:
        reached: set[str] = set()
        todo = [distribution.requires]
        while todo:
            # Requirements may form cycles.
            for name in todo.pop() - reached:
                reached.add(name)
                found = self.named(name)
                if found is not None:
                    todo.append(found.requires)
        return frozenset(reached)

    def _claiming(self, file: str) -> tuple[LazyDistribution, ...]:
        """Return the distributions that may contain a file, cached by its folder."""
        folder = os.path.dirname(file)  # noqa: PTH120 - called for every module
        if folder not in self._candidates:
            near = map(self._entry, self._candidates_for(folder))
            self._candidates[folder] = tuple(entry for entry in near if entry.may_claim(folder))
        return self._candidates[folder]

    def _candidates_for(self, folder: str) -> Iterable[str]:
        """Return the distributions that may contain files in a folder.

        Most are installed in another folder and are not editable. For those, only the existence of
        an origin file is checked.
        """
        return chain.from_iterable(
            each.found if is_within(folder, each.prefix) else self._editable_in(each)
            for each in self._folders
        )

    def _editable_in(self, folder: Folder) -> Sequence[str]:
        """Return the distributions in a folder that may be editable, checked once per index."""
        if folder.prefix not in self._editable:
            self._editable[folder.prefix] = [
                each for each in folder.found if os.access(f"{each}/{ORIGIN}", os.F_OK)
            ]
        return self._editable[folder.prefix]

    def _find_owner(self, module: str, location: Location) -> InstalledDistribution | None:
        """Return the distribution that contains a module's file, or files of a namespace package.

        A namespace package has no distribution if one of its folders belongs to none.
        """
        if location.file:
            return self._find_claimant(module, normalize_path(location.file), False)
        folders = map(normalize_path, location.search)
        owners = [self._find_claimant(module, each, True) for each in folders]
        return None if None in owners else next(iter(owners), None)

    def _find_claimant(
        self, module: str, path: str, is_folder: bool
    ) -> InstalledDistribution | None:
        for entry in self._claiming(path):
            if entry.claims(module, path, is_folder) and entry.distribution is not None:
                return entry.distribution
        return None
