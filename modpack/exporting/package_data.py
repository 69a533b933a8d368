"""Files and metadata that are included with interned modules.

For an installed distribution, its file list names them: the files in folders of interned packages.
The user's own folders may contain any file. A file there is included only if a source names it, or
if the self-test looked for it, and nothing about it suggests a secret or a checkpoint. Nothing is
executed.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol, runtime_checkable

from modpack.core.graph import CodeKind, Location
from modpack.core.names import (
    RUNTIME_ROOTS,
    join_record,
    module_record,
    normalized,
    package_folder,
    root_of,
)
from modpack.core.plan import Decision, FileKind, PlannedDistribution, PlannedFile
from modpack.core.rules import Action
from modpack.diagnostics import Diagnostic
from modpack.discovery.distributions import (
    DistributionIndex,
    InstalledDistribution,
    metadata_folder,
)
from modpack.discovery.walk import Walker
from modpack.exporting.data_files import (
    SizeLimit,
    is_code,
    is_data,
    is_in_tests,
    is_loadable,
    is_native,
    is_private,
    iter_data_files,
)

_FROM_PACKAGE = "the package that the code comes from contains it"
_IDENTITY_FILES = ("METADATA", "WHEEL", "top_level.txt")


@runtime_checkable
class LoadedPackage(Protocol):
    """A loaded package that provides modules."""

    tree: Path
    data_files: Callable[[], Mapping[str, str]]


class _ModuleLocation(NamedTuple):
    """The location of an interned module on this machine.

    Attributes:
        module: The module path.
        file: The file that contains it.
        is_package: Whether it is a package's ``__init__``.
        installed: The installed distributions of its environment.
        distribution: Its own distribution.
        package: The package that it comes from if it is re-exported.
    """

    module: str
    file: Path
    is_package: bool
    installed: DistributionIndex
    distribution: InstalledDistribution | None
    package: LoadedPackage | None

    @property
    def folder(self) -> Path:
        """The folder where the module's code looks for neighboring files."""
        return self.file.parent

    @property
    def record_folder(self) -> str:
        """The record folder that corresponds to ``folder``. ``""`` is the root."""
        return package_folder(self.module if self.is_package else self.module.rpartition(".")[0])

    @property
    def is_installed(self) -> bool:
        """Whether an installed distribution lists the module's files."""
        return self.distribution is not None and not self.distribution.editable


def _record_folders(locations: Iterable[_ModuleLocation]) -> dict[Path, str]:
    """Return the record folder of each folder with interned modules, and of their parents."""
    folders: dict[Path, str] = {}
    for location in locations:
        place, record = location.folder, location.record_folder
        while folders.get(place) != record:  # otherwise the parents are known as well
            folders.setdefault(place, record)
            if not record:
                break
            place, record = place.parent, record.rpartition("/")[0]
    return folders


def _record_in(folders: Mapping[Path, str], file: Path) -> str | None:
    """Return the record of a file in or below one of the folders, or None."""
    for place in file.parents:
        if place in folders:
            return join_record(folders[place], file.relative_to(place).as_posix())
    return None


class PackageData(NamedTuple):
    """The files and metadata that are included with interned code.

    Attributes:
        files: The files, by record.
        distributions: The distributions whose metadata is included.
        notes: Notes about excluded files.
    """

    files: tuple[PlannedFile, ...] = ()
    distributions: tuple[PlannedDistribution, ...] = ()
    notes: tuple[Diagnostic, ...] = ()


@dataclass
class _Collector:
    """Collects the files and metadata of one plan. For single use.

    Attributes:
        decisions: The decision for each module.
        locations: The locations of interned modules.
        walker: Provides the scans of sources.
        host: The distributions of this interpreter.
        native: Whether native code of distributions with interned modules is included.
    """

    decisions: Mapping[str, Decision]
    locations: Mapping[str, _ModuleLocation]
    walker: Walker
    host: DistributionIndex
    native: bool
    _files: dict[str, PlannedFile] = field(default_factory=dict)
    _distributions: dict[str, PlannedDistribution] = field(default_factory=dict)
    _limit: SizeLimit = field(default_factory=SizeLimit)
    _notes: list[Diagnostic] = field(default_factory=list)

    @cached_property
    def _folders(self) -> dict[Path, str]:
        return _record_folders(self.locations.values())

    def collect(
        self, requested: Iterable[PlannedFile], requested_metadata: Mapping[str, str]
    ) -> PackageData:
        """Collect everything that is included.

        Args:
            requested: Files requested explicitly.
            requested_metadata: Names of distributions with requested metadata, and the reasons.
        """
        # The first file with a record counts: those of distributions precede those found by name.
        groups: dict[tuple[int, str], list[_ModuleLocation]] = {}
        owners: dict[tuple[int, str], tuple[DistributionIndex, InstalledDistribution]] = {}
        for each in self.locations.values():
            if self.native and is_native(each.file.name):
                package = package_folder(each.module.rpartition(".")[0])
                record = join_record(package, each.file.name)
                self._add_native(record, each.file, each.module, "it is interned")
            if each.distribution is not None:
                key = id(each.installed), each.distribution.name
                owners.setdefault(key, (each.installed, each.distribution))
                groups.setdefault(key, []).append(each)
        for key, (installed, distribution) in owners.items():
            self._add_distribution(installed, distribution, groups[key])
        for installed, distribution in owners.values():
            # Packaged code sees the metadata of its distribution's requirements, as installed.
            for name in sorted(distribution.requires):
                self._add_identity(installed, name, f"{distribution.name} requires it")
        for each in self.locations.values():
            if not each.is_installed:  # the file list of a distribution covers its files
                self._add_named_files(each)
        self._add_packaged_data()
        for file in requested:
            self._files.setdefault(file.record, file)
        for name, why in requested_metadata.items():
            self._add_identity(self.host, name, why)
        self._add_packaged_metadata()
        for owner, left_out in self._limit.excluded.items():
            sizes = ", ".join(f"{f} ({size / 2**20:,.0f} MiB)" for f, size in left_out.items())
            text = f"files that code of {owner} may read are excluded for their size: {sizes}"
            hint = "If the model needs them, save them: save_binary(package, name, contents)."
            self._exclude(owner, text, hint)
        # Sorted, so that equal packages have equal bytes.
        files = tuple(self._files[record] for record in sorted(self._files))
        distributions = tuple(self._distributions[n] for n in sorted(self._distributions))
        return PackageData(files, distributions, tuple(dict.fromkeys(self._notes)))

    def _add_distribution(
        self,
        installed: DistributionIndex,
        distribution: InstalledDistribution,
        group: Sequence[_ModuleLocation],
    ) -> None:
        """Add the metadata of a distribution, and its files next to its interned modules."""
        contents = installed.contents_of(distribution)
        if contents is None:
            return
        modules = tuple(each.module for each in group)
        self._add_metadata(
            installed, distribution, modules, contents.metadata, "its modules are interned"
        )
        if distribution.editable:
            return
        folders = {each.folder: each.record_folder for each in group if each.record_folder}
        listed = [contents.folder / name for name in contents.listed if not is_code(name)]
        if not contents.listed:
            listed = [file for folder in folders for file in iter_data_files(folder)]
        packages = {
            (contents.folder / name).parent
            for name in contents.listed
            if name.rpartition("/")[2] == "__init__.py"
        }
        for file in listed:
            place = next((p for p in file.parents if p in packages or p in folders), None)
            # The nearest package decides: one that is not interned keeps its files.
            if place not in folders:
                continue
            path = file.relative_to(place).as_posix()
            record = join_record(folders[place], path)
            is_hidden = any(part.startswith(".") for part in path.split("/"))
            is_for_tools = path.endswith("py.typed")  # PEP 561: only type checkers read it
            is_used = not (is_hidden or is_for_tools or is_in_tests(path) or "__pycache__/" in path)
            if is_data(path) and is_used:
                why = f"{distribution.name} lists it next to interned code"
                self._add(record, file, distribution.name, why)
            elif self.native and is_loadable(file.name) and not is_in_tests(path):
                self._add_native(record, file, distribution.name, "interned code may load it")
        for name in contents.listed if self.native else ():
            if name.partition("/")[0].endswith(".libs"):  # shared libraries next to its packages
                why = "native extensions need it"
                self._add_native(name, contents.folder / name, distribution.name, why)

    def _add_named_files(self, location: _ModuleLocation) -> None:
        """Add the files that the user's own source names with string constants.

        A name is looked up in the module's folder, in the folders of the Python packages around
        it, and in folders that earlier constants name: ``here / "lists" / "words.txt"``. A pattern
        is not looked up in the folders around the module, which may contain any file.
        """
        folders = [location.folder]
        for _ in range(location.record_folder.count("/")):
            folders.append(folders[-1].parent)
        for name in self.walker.scan(location.module).file_names:
            package = self.locations.get(name.text)  # files("mine.lists")
            head, _, pattern = name.text.rpartition("/")
            if package is not None and package.is_package:
                folders.append(package.folder)
            elif "*" in pattern:
                for place in [Path(os.path.normpath(folder / head)) for folder in folders]:
                    if not location.folder.is_relative_to(place):
                        for file in iter_data_files(place):
                            if file.match(pattern):
                                self._add_named_file(location, file, name.line)
            else:
                places = [Path(os.path.normpath(folder / name.text)) for folder in folders]
                folders += [p for p in places if p not in folders and self._may_have_data(p)]
                for file in [place for place in places if place.is_file()][:1]:
                    self._add_named_file(location, file, name.line)

    def _may_have_data(self, folder: Path) -> bool:
        """Return whether a path is a folder that is not a module of its own.

        With files but without its code, such a folder would be a namespace package after loading,
        and an import that should fail would succeed.
        """
        if not folder.is_dir():
            return False
        record = _record_in(self._folders, folder) or ""
        is_inside = record.partition("/")[0] in self.locations
        return is_inside or not (folder / "__init__.py").is_file()

    def _add_named_file(self, location: _ModuleLocation, file: Path, line: int) -> None:
        module, record = location.module, _record_in(self._folders, file)
        if record is None:  # not below an interned package
            return
        if is_loadable(file.name):
            if self.native:
                self._add_native(record, file, module, f"{module} names it (line {line})")
            else:
                text = f"{file}, which {module} names (line {line}), is native code"
                hint = "If the model loads it, pass intern_native=True (--intern-native)."
                self._exclude(module, text, hint)
        elif not is_data(file.name):
            return
        elif is_private(record):
            self._exclude(module, f"{file}, which {module} names, is excluded as a possible secret")
        else:
            self._add(record, file, module, f"{module} names it (line {line})")

    def _add_packaged_data(self) -> None:
        """Add the data files that loaded packages contain for the modules taken from them."""
        owners: dict[int, tuple[LoadedPackage, set[str]]] = {}
        for each in self.locations.values():
            if each.package is not None:
                of_package = owners.setdefault(id(each.package), (each.package, set()))[1]
                of_package.add(each.module)
                if each.distribution is not None:
                    of_package.add(each.distribution.name)
        for package, names in owners.values():
            for record, owner in package.data_files().items():
                if owner in names:
                    self._add(record, package.tree / record, owner, _FROM_PACKAGE)

    def _add_identity(self, installed: DistributionIndex, name: str, why: str) -> None:
        found = installed.named(name)
        if found is None:
            return
        key = normalized(found.name)
        if key not in RUNTIME_ROOTS and key not in self._externs:  # otherwise the host has it
            self._add_metadata(installed, found, (), _IDENTITY_FILES, why)

    def _add_packaged_metadata(self) -> None:
        """Add the metadata that loaded packages contain of distributions without any code."""
        for each in {id(each.installed): each for each in self.locations.values()}.values():
            for file in sorted(each.package.tree.glob("*.dist-info")) if each.package else ():
                # In a package, only distributions with modules have a RECORD.
                if not (file / "RECORD").exists():
                    name = file.name.removesuffix(".dist-info").rpartition("-")[0]
                    self._add_identity(each.installed, name, _FROM_PACKAGE)

    def _add_metadata(
        self,
        installed: DistributionIndex,
        distribution: InstalledDistribution,
        modules: tuple[str, ...],
        names: Iterable[str],
        why: str,
    ) -> None:
        key, owner = normalized(distribution.name), distribution.name
        contents = installed.contents_of(distribution)
        if contents is None or "METADATA" not in contents.metadata or key in self._distributions:
            return
        folder = metadata_folder(owner, distribution.version)
        planned = PlannedDistribution(owner, distribution.version, folder, modules)
        self._distributions[key] = planned
        for name in names:
            if name in contents.metadata:
                record, source = f"{folder}/{name}", str(contents.metadata[name])
                self._files[record] = PlannedFile(record, source, owner, why, FileKind.METADATA)

    @cached_property
    def _externs(self) -> frozenset[str]:
        """The normalized names of distributions that the loading environment must provide."""
        names: dict[str, str] = {}
        for module, decision in self.decisions.items():
            root, location = root_of(module), decision.location
            if decision.action is Action.EXTERN and location is not None and root not in names:
                found = self.host.distribution_of(module, location)
                if found is not None:
                    names[root] = normalized(found.name)
        return frozenset(names.values())

    def _add_native(self, record: str, file: Path, owner: str, why: str) -> None:
        if file.is_file() and record not in self._files:
            self._files[record] = PlannedFile(record, str(file), owner, why, FileKind.NATIVE)

    def _add(self, record: str, file: Path, owner: str, why: str) -> None:
        known = self._files.get(record)
        if known is None:
            if self._limit.admits(file, owner):
                self._files[record] = PlannedFile(record, str(file), owner, why)
        elif known.source != str(file):
            text = f"{file} is excluded, because {known.source} has the same record name, {record}"
            self._exclude(owner, text, "Move one of them into the folder of a Python package.")

    def _exclude(self, owner: str, text: str, hint: str | None = None) -> None:
        note = Diagnostic.from_code("data-files-excluded", owner, text, hint=hint)
        self._notes.append(note)


class PackageDataPlanner:
    """Decides which files are included, and remembers requested files.

    Args:
        walker: Provides the locations of modules.
        host: The distributions of this interpreter.

    Attributes:
        native: Whether native code of distributions with interned modules is included.
        given: The files of modules whose sources were given, if they came from files.
    """

    def __init__(self, walker: Walker, host: DistributionIndex) -> None:
        self.native = False
        self.given: dict[str, Path] = {}
        self._walker = walker
        self._host = host
        self._trees: dict[Path, DistributionIndex] = {}
        self._requested: dict[str, PlannedFile] = {}
        self._requested_metadata: dict[str, str] = {}
        self._found: tuple[object, PackageData] | None = None
        # An export asks three times (warm walk-sympy: 8 % of it).
        self._make_location = cache(self._find_location)

    def find(self, decisions: Mapping[str, Decision]) -> PackageData:
        """Return the files and metadata for the interned modules among the decisions."""
        key = (
            frozenset((module, d.action) for module, d in decisions.items()),
            (*self._requested, *self._requested_metadata, *self.given),
            self.native,
        )
        if self._found is None or self._found[0] != key:
            locations, walker = self._interned(decisions), self._walker
            collector = _Collector(decisions, locations, walker, self._host, self.native)
            self._found = key, collector.collect(self._requested.values(), self._requested_metadata)
        return self._found[1]

    def _interned(self, decisions: Mapping[str, Decision]) -> dict[str, _ModuleLocation]:
        """Return the locations of interned modules that are files on this machine."""
        interned = sorted(m for m, d in decisions.items() if d.action is Action.INTERN)
        found = map(self._location, interned)
        return {location.module: location for location in found if location is not None}

    def _location(self, module: str) -> _ModuleLocation | None:
        location = self._walker.locate(module)
        if location is None:
            return None
        return self._make_location(module, location, self.given.get(location.module))

    def _find_location(
        self, module: str, location: Location, given: Path | None
    ) -> _ModuleLocation | None:
        environment: object = self._walker.environment_of(module)
        package = environment if isinstance(environment, LoadedPackage) else None
        installed = self._host
        if package is None:
            at = location.file
            file = given if at is None else Path(at)
        else:
            # Its modules belong to the distributions in the package, not to installed ones.
            installed = self._trees.setdefault(package.tree, DistributionIndex([str(package.tree)]))
            file = package.tree / module_record(location.module, location.is_package)
            if location.kind is CodeKind.EXTENSION:
                folder = package_folder(location.module.rpartition(".")[0])
                file = package.tree / folder / Path(location.file or "").name
        if file is None or not file.is_file():  # only a folder, or not on disk
            return None
        is_package = location.is_package
        real = Location(module, location.kind, str(file), is_package, location.search)
        distribution = installed.distribution_of(module, real)
        return _ModuleLocation(module, file, is_package, installed, distribution, package)

    def package_trees(self, decisions: Mapping[str, Decision]) -> list[Path]:
        """Return the unpacked trees of the packages that interned modules come from."""
        packages = (each.package for each in self._interned(decisions).values())
        return sorted({package.tree for package in packages if package is not None})

    def own_folders(self, decisions: Mapping[str, Decision]) -> set[Path]:
        """Return the folders of the user's own interned code."""
        return {
            each.folder
            for each in self._interned(decisions).values()
            if not each.is_installed and each.package is None
        }

    def publisher_of(self, source: str | PlannedFile, data: bytes) -> InstalledDistribution | None:
        """Return the distribution from an index that contains a module or a file as it is.

        Args:
            source: The module path or the planned file.
            data: The contents.
        """
        if isinstance(source, PlannedFile):
            file: Path | None = Path(source.source)
        else:
            location = self._location(source)
            file = None if location is None else location.file
        indexes = () if file is None else (self._host, *self._trees.values())
        found = (index.publisher_of(file, data) for index in indexes if file is not None)
        return next(filter(None, found), None)

    def add_file(self, decisions: Mapping[str, Decision], record: str, why: str) -> bool:
        """Add the file, or the files of the folder, that packaged code looked for.

        Args:
            decisions: The decision for each module.
            record: The path below the package's root, with ``/``.
            why: The reason.

        Returns:
            Whether a new file was added. Secrets, sources, and files above the size limit aren't.
        """
        # A run may ask for any path, but only the user saves a secret.
        if is_private(record):
            return False
        planned = {file.record for file in self.find(decisions).files}
        folders = _record_folders(self._interned(decisions).values())
        limit = SizeLimit()
        found = [
            PlannedFile(its_record, str(file), posixpath.dirname(its_record).replace("/", "."), why)
            for file in _find_requested(folders, PurePosixPath(record))
            for its_record in [_record_in(folders, file)]
            if its_record is not None and its_record not in planned
            if is_data(file.name) and limit.admits(file)
        ]
        self._requested.update((file.record, file) for file in found)
        return bool(found)

    def add_metadata(self, decisions: Mapping[str, Decision], name: str, why: str) -> bool:
        """Make a distribution's name, version, and requirements visible to packaged code.

        Args:
            decisions: The decision for each module.
            name: The distribution.
            why: The reason.

        Returns:
            Whether the distribution is installed and was not in the plan before.
        """
        before = self.find(decisions).distributions
        self._requested_metadata[name] = why
        return self.find(decisions).distributions != before


def _find_requested(folders: Mapping[Path, str], record: PurePosixPath) -> list[Path]:
    """Return the files on this machine that correspond to a record or a folder of records."""
    # From the record upward: the innermost folder is searched first.
    for above in (record, *record.parents):
        name = "" if str(above) == "." else str(above)
        for folder in (real for real, its_record in folders.items() if its_record == name):
            place = folder / record.relative_to(above)
            if place.is_file():
                return [place]
            if place.is_dir() and place != folder:
                return list(iter_data_files(place))
    return []
