"""Files and metadata that are included with interned modules.

For an installed distribution the answer is in its own list of files: what lies in the folders of
interned packages. For the user's own code see :mod:`modpack.exporting.data_files`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from modpack.core.names import RUNTIME_ROOTS, join_record, package_folder, root_of
from modpack.core.names import normalised_distribution as normalised
from modpack.core.plan import Decision, FileKind, Note, NoteKind, PlannedDistribution, PlannedFile
from modpack.core.rules import Action
from modpack.discovery.distributions import Distribution, DistributionIndex, metadata_folder
from modpack.discovery.walk import Walker
from modpack.exporting.data_files import (
    DataFileCandidate,
    ModuleLocation,
    ModuleLocations,
    SizeLimit,
    files_below,
    files_beside,
    is_code,
    is_compiled,
    is_data,
    is_loadable,
    is_private,
    is_tests,
    record_folders,
    record_in,
)

_KEPT = "the package that the code comes from holds it"
_KNOWN_WITHOUT_CODE = ("METADATA", "WHEEL", "top_level.txt")


@dataclass(frozen=True)
class PackageData:
    """What is included with interned code.

    Attributes:
        files: the files, by record.
        distributions: the distributions whose metadata is among them.
        notes: what was left out, and why.
    """

    files: tuple[PlannedFile, ...] = ()
    distributions: tuple[PlannedDistribution, ...] = ()
    notes: tuple[Note, ...] = ()


class _Collector:
    """Collects what is included; use it once.

    Args:
        decisions: what happens to each module.
        locations: where interned modules are on this machine.
        host: the distributions of this interpreter.
        native: whether compiled files of distributions with interned modules are included.
    """

    def __init__(
        self,
        decisions: Mapping[str, Decision],
        locations: Mapping[str, ModuleLocation],
        host: DistributionIndex,
        native: bool,
    ) -> None:
        self._decisions = decisions
        self._locations = locations
        self._host = host
        self._native = native
        self._files: dict[str, PlannedFile] = {}
        self._distributions: dict[str, PlannedDistribution] = {}
        self._limit = SizeLimit()
        self._notes: list[Note] = []

    def collect(
        self, walker: Walker, asked: Iterable[PlannedFile], asked_metadata: Mapping[str, str]
    ) -> PackageData:
        """Everything that is included.

        Args:
            walker: knows what sources say.
            asked: files that were asked for.
            asked_metadata: names of distributions whose metadata was asked for, and who asks.
        """
        groups: dict[tuple[int, str], list[ModuleLocation]] = {}
        for each in self._locations.values():
            if self._native and is_compiled(each.file.name):
                package = package_folder(each.module.rpartition(".")[0])
                record = join_record(package, each.file.name)
                self._take_compiled(record, each.file, each.module, "it is interned")
            if each.distribution is not None:
                key = id(each.installed), each.distribution.name
                groups.setdefault(key, []).append(each)
        for group in groups.values():
            self._take_distribution(group)
        for installed, distribution in map(_distribution_of, groups.values()):
            # Packaged code sees what its distribution requires, as it is installed here.
            for name in sorted(distribution.requires):
                self._take_name_and_version(installed, name, f"{distribution.name} requires it")
        for candidate in files_beside(self._locations, walker, self._notes):
            self._take(candidate)
        for candidate in _kept(self._locations.values()):
            self._take(candidate)
        for file in asked:
            self._files.setdefault(file.record, file)
        for name, why in asked_metadata.items():
            self._take_name_and_version(self._host, name, why)
        self._keep_metadata()
        self._notes += _left_out(self._limit)
        files = tuple(self._files[record] for record in sorted(self._files))
        distributions = tuple(self._distributions[n] for n in sorted(self._distributions))
        return PackageData(files, distributions, tuple(dict.fromkeys(self._notes)))

    def _take_distribution(self, group: Sequence[ModuleLocation]) -> None:
        """Take the metadata of a distribution, and its files beside its interned modules."""
        installed, distribution = _distribution_of(group)
        contents = installed.contents_of(distribution)
        if contents is None:
            return
        modules = tuple(each.module for each in group)
        self._describe(
            installed, distribution, modules, contents.metadata, "its modules are interned"
        )
        if distribution.editable:
            return
        folders = {each.folder: each.record_folder for each in group if each.record_folder}
        listed = [contents.folder / name for name in contents.listed if not is_code(name)]
        if not contents.listed:
            listed = [file for folder in folders for file in files_below(folder)]
        packages = {
            (contents.folder / name).parent
            for name in contents.listed
            if PurePosixPath(name).name == "__init__.py"
        }
        for file in listed:
            place = next((p for p in file.parents if p in packages or p in folders), None)
            if place not in folders:
                continue
            path = file.relative_to(place).as_posix()
            record = join_record(folders[place], path)
            if _is_listed_data(path):
                why = f"{distribution.name} lists it beside interned code"
                self._take(DataFileCandidate(file, record, distribution.name, why))
            elif self._native and is_loadable(file.name) and not is_tests(path):
                self._take_compiled(record, file, distribution.name, "interned code may load it")
        for name in contents.listed if self._native else ():
            if name.partition("/")[0].endswith(".libs"):  # shared libraries beside its packages
                why = "compiled modules need it"
                self._take_compiled(name, contents.folder / name, distribution.name, why)

    def _take_name_and_version(self, installed: DistributionIndex, name: str, why: str) -> None:
        found = installed.named(name)
        if found is None:
            return
        key = normalised(found.name)
        if key not in RUNTIME_ROOTS and key not in self._externs:  # else it is the loader's
            self._describe(installed, found, (), _KNOWN_WITHOUT_CODE, why)

    def _keep_metadata(self) -> None:
        """Keep what packages know of distributions without having code of them."""
        for each in {id(each.installed): each for each in self._locations.values()}.values():
            for file in sorted(each.package.tree.glob("*.dist-info")) if each.package else ():
                if not (file / "RECORD").exists():
                    name = file.name.removesuffix(".dist-info").rpartition("-")[0]
                    self._take_name_and_version(each.installed, name, _KEPT)

    def _describe(
        self,
        installed: DistributionIndex,
        distribution: Distribution,
        modules: tuple[str, ...],
        names: Iterable[str],
        why: str,
    ) -> None:
        key, owner = normalised(distribution.name), distribution.name
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
        """The normalised names of the distributions that stay where the package is loaded."""
        asked: set[str] = set()
        names: set[str] = set()
        for module, decision in self._decisions.items():
            is_extern = decision.action is Action.EXTERN and decision.location is not None
            if is_extern and root_of(module) not in asked:
                found = self._host.distribution_of(module, decision.location)
                if found is not None:
                    asked.add(root_of(module))
                    names.add(normalised(found.name))
        return frozenset(names)

    def _take_compiled(self, record: str, file: Path, owner: str, why: str) -> None:
        if file.is_file() and record not in self._files:
            self._files[record] = PlannedFile(record, str(file), owner, why, FileKind.COMPILED)

    def _take(self, candidate: DataFileCandidate) -> None:
        record, file, owner = candidate.record, candidate.file, candidate.owner
        known = self._files.get(record)
        if known is not None:
            if known.source != str(file):
                text = (
                    f"{file} is left out: it would be {record} in the package, as {known.source} "
                    "is. Move one of them into a package's folder"
                )
                self._notes.append(Note(NoteKind.FILES_LEFT_OUT, owner, text))
        elif self._limit.admits(file, owner, candidate.most):
            self._files[record] = PlannedFile(record, str(file), owner, candidate.why)


def _distribution_of(group: Sequence[ModuleLocation]) -> tuple[DistributionIndex, Distribution]:
    found = group[0].distribution
    assert found is not None  # modules without one are in no group
    return group[0].installed, found


def _kept(locations: Iterable[ModuleLocation]) -> Iterator[DataFileCandidate]:
    """What packages hold for the code that is taken from them, whatever the evidence was."""
    packages = {id(each.package): each.package for each in locations if each.package is not None}
    owners: dict[int, set[str]] = {key: set() for key in packages}
    for each in locations:
        if each.package is not None:
            names = (each.module, each.distribution.name if each.distribution else each.module)
            owners[id(each.package)].update(names)
    for key, package in packages.items():
        for record, owner in package.data_files().items():
            if owner in owners[key]:
                yield DataFileCandidate(package.tree / record, record, owner, _KEPT)


def _is_listed_data(path: str) -> bool:
    """Whether a distribution's file, named relative to an interned package, is data."""
    is_hidden = any(part.startswith(".") for part in path.split("/"))
    is_for_tools = path.endswith("py.typed")  # PEP 561: only type checkers look at it
    return is_data(path) and not (
        is_hidden or is_for_tools or is_tests(path) or "__pycache__/" in path
    )


def _left_out(limit: SizeLimit) -> Iterator[Note]:
    for owner, files in limit.left_out.items():
        shown = ", ".join(f"{file} ({size / 2**20:,.0f} MiB)" for file, size in files.items())
        yield Note(
            NoteKind.FILES_LEFT_OUT,
            owner,
            f"left out for their size, although code of {owner} may read them: {shown}. If it "
            "does, save them: save_binary(package, name, contents)",
        )


class PackageDataPlanner:
    """Decides which files are included, and keeps what was asked for.

    Args:
        walker: knows where modules were found.
        host: the distributions of this interpreter.

    Attributes:
        native: whether compiled files of distributions with interned modules are included.
        given: the files of modules whose sources were given, where they came from files.
    """

    def __init__(self, walker: Walker, host: DistributionIndex) -> None:
        self.native = False
        self.given: dict[str, Path] = {}
        self._locations = ModuleLocations(walker, host, self.given)
        self._asked: dict[str, PlannedFile] = {}
        self._asked_metadata: dict[str, str] = {}
        self._found: tuple[object, PackageData] | None = None

    def find(self, decisions: Mapping[str, Decision]) -> PackageData:
        """What is included with the interned modules among those that were decided."""
        key = (
            frozenset((module, d.action) for module, d in decisions.items()),
            (*self._asked, *self._asked_metadata, *self.given),
            self.native,
        )
        if self._found is None or self._found[0] != key:
            locations, host = self._interned(decisions), self._locations.host
            collector = _Collector(decisions, locations, host, self.native)
            asked = self._asked.values()
            found = collector.collect(self._locations.walker, asked, self._asked_metadata)
            self._found = key, found
        return self._found[1]

    def _interned(self, decisions: Mapping[str, Decision]) -> dict[str, ModuleLocation]:
        interned = (m for m, d in decisions.items() if d.action is Action.INTERN)
        return self._locations.of(sorted(interned))

    def trees(self, decisions: Mapping[str, Decision]) -> list[Path]:
        """The unpacked trees of the packages that interned modules come from."""
        packages = (each.package for each in self._interned(decisions).values())
        return sorted({package.tree for package in packages if package is not None})

    def own_folders(self, decisions: Mapping[str, Decision]) -> set[Path]:
        """The folders of the user's own code that is interned."""
        return {
            each.folder
            for each in self._interned(decisions).values()
            if not each.is_installed and each.package is None
        }

    def published(self, decisions: Mapping[str, Decision]) -> Callable[[str, str, bytes], bool]:
        """Tell which files are as an index has them.

        Those that a package holds of a distribution count as well: what was not published was
        refused, or allowed, when that package was made.

        Args:
            decisions: what happens to each module.

        Returns:
            Tells that, given a file's owner, which is a module or a distribution, the file, and
            its content.
        """
        kept = {
            owner
            for each in self._interned(decisions).values()
            if each.package is not None and each.distribution is not None
            for owner in (each.module, each.distribution.name)
        }
        host = self._locations.host
        return lambda owner, file, content: owner in kept or host.is_published(file, content)

    def add_file(self, decisions: Mapping[str, Decision], record: str, why: str) -> bool:
        """Take the file, or the files of the folder, that packaged code looked for.

        Args:
            decisions: what happens to each module.
            record: its path below the package's root, with ``/``.
            why: who asks.

        Returns:
            Whether there is such a file, it may go along without the user's word (a secret, a
            source, or what is too large may not), and it was not in the plan before.
        """
        if is_private(record):
            return False
        planned = {file.record for file in self.find(decisions).files}
        folders = record_folders(self._interned(decisions))
        limit = SizeLimit()
        found = [
            PlannedFile(its_record, str(file), posixpath.dirname(its_record).replace("/", "."), why)
            for file in _looked_for(folders, PurePosixPath(record))
            for its_record in [record_in(folders, file)]
            if its_record is not None and its_record not in planned
            if is_data(file.name) and limit.admits(file)
        ]
        self._asked.update((file.record, file) for file in found)
        return bool(found)

    def add_metadata(self, decisions: Mapping[str, Decision], name: str, why: str) -> bool:
        """Let packaged code see the name, version and requirements of a distribution.

        Args:
            decisions: what happens to each module.
            name: the distribution's name.
            why: who asks.

        Returns:
            Whether it is installed here and was not in the plan before.
        """
        before = self.find(decisions).distributions
        self._asked_metadata[name] = why
        return self.find(decisions).distributions != before


def _looked_for(folders: Mapping[Path, str], record: PurePosixPath) -> list[Path]:
    """The file, or the files of the folder, that a record stands for on this machine."""
    for above in (record, *record.parents):
        name = "" if str(above) == "." else str(above)
        for folder in (real for real, its_record in folders.items() if its_record == name):
            place = folder / record.relative_to(above)
            if place.is_file():
                return [place]
            if place.is_dir() and place != folder:
                return list(files_below(place))
    return []
