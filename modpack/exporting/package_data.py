"""One pass over a plan: which files and metadata go along with its interned modules.

What goes along with interned code besides the code: the files that it reads, and metadata.

For an installed distribution the answer is in its own list of files: what lies in the folders of
interned packages. For the user's own code, where any file may lie beside it, one goes along only
if the source says so. Nothing is executed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from modpack.core.names import RUNTIME_ROOTS, join_record, package_folder, root_of
from modpack.core.names import normalised_distribution as normalised
from modpack.core.plan import Decision, FileKind, Note, NoteKind, PlannedDistribution, PlannedFile
from modpack.core.rules import Action
from modpack.discovery.distributions import Distribution, metadata_folder
from modpack.discovery.walk import Walker
from modpack.exporting.data_files import (
    Budget,
    Offer,
    files_below,
    files_beside,
    is_code,
    is_compiled,
    is_loadable,
    is_private,
    is_tests,
    record_folders,
)
from modpack.exporting.module_locations import Home, Homes, Installed, record_in

_KEPT = "the package that the code comes from holds it"
_KNOWN_WITHOUT_CODE = ("METADATA", "WHEEL", "top_level.txt")


@dataclass(frozen=True)
class Holdings:
    """What goes along with interned code.

    Attributes:
        files: the files, by record.
        distributions: the distributions whose metadata is among them.
        notes: what was left out, and why.
    """

    files: tuple[PlannedFile, ...] = ()
    distributions: tuple[PlannedDistribution, ...] = ()
    notes: tuple[Note, ...] = ()


def interned(decisions: Mapping[str, Decision]) -> list[str]:
    """The interned modules, sorted."""
    return sorted(m for m, d in decisions.items() if d.action is Action.INTERN)


class Gathering:
    """Collects what goes along; use it once.

    Args:
        decisions: what happens to each module.
        homes: where modules are on this machine.
        native: whether compiled files of distributions with interned modules go along.
    """

    def __init__(self, decisions: Mapping[str, Decision], homes: Homes, native: bool) -> None:
        self._decisions = decisions
        self._homes = homes.of(interned(decisions))
        self._walker = homes.walker
        self._host = homes.host
        self._native = native
        self._files: dict[str, PlannedFile] = {}
        self._distributions: dict[str, PlannedDistribution] = {}
        self._budget = Budget()
        self._notes: list[Note] = []

    def all(self, asked: Iterable[PlannedFile], asked_metadata: Mapping[str, str]) -> Holdings:
        """Everything that goes along.

        Args:
            asked: files that were asked for.
            asked_metadata: names of distributions whose metadata was asked for, and who asks.
        """
        groups = self._by_distribution()
        if self._native:
            self._take_compiled_modules()
        for (installed, distribution), homes in groups:
            self._take_metadata(installed, distribution, homes)
            if not distribution.editable:
                self._take_listed(installed, distribution, homes)
                if self._native:
                    self._take_libraries(installed, distribution)
        for (installed, distribution), _ in groups:
            self._take_requirements(installed, distribution)
        for offer in files_beside(self._homes, self._walker, self._notes):
            self._take_offered(offer)
        for offer in _kept(self._homes.values()):
            self._take_offered(offer)
        for file in asked:
            self._files.setdefault(file.record, file)
        for name, why in asked_metadata.items():
            self._take_name_and_version(self._host, name, why)
        self._keep_metadata()
        self._notes += _left_out(self._budget)
        files = tuple(self._files[record] for record in sorted(self._files))
        distributions = tuple(self._distributions[n] for n in sorted(self._distributions))
        return Holdings(files, distributions, tuple(dict.fromkeys(self._notes)))

    def _by_distribution(self) -> list[tuple[tuple[Installed, Distribution], list[Home]]]:
        groups: dict[tuple[int, str], list[Home]] = {}
        for home in self._homes.values():
            if home.distribution is not None:
                key = id(home.installed), home.distribution.name
                groups.setdefault(key, []).append(home)
        return [
            ((homes[0].installed, homes[0].distribution), homes)
            for homes in groups.values()
            if homes[0].distribution is not None
        ]

    # -- metadata ----------------------------------------------------------------------------

    def _take_metadata(
        self, installed: Installed, distribution: Distribution, homes: Sequence[Home]
    ) -> None:
        contents = installed.contents_of(distribution)
        modules = tuple(home.module for home in homes)
        names = tuple(contents.metadata) if contents is not None else ()
        self._describe(installed, distribution, modules, names, "its modules are interned")

    def _take_requirements(self, installed: Installed, distribution: Distribution) -> None:
        """Let packaged code see what its distribution requires, as it is installed here."""
        for name in sorted(distribution.requires):
            self._take_name_and_version(installed, name, f"{distribution.name} requires it")

    def _take_name_and_version(self, installed: Installed, name: str, why: str) -> None:
        found = installed.named(name)
        if found is not None and not self._comes_from_host(found):
            self._describe(installed, found, (), _KNOWN_WITHOUT_CODE, why)

    def _keep_metadata(self) -> None:
        """Keep what packages know of distributions without having code of them."""
        homes = {id(home.installed): home for home in self._homes.values()}
        for home in homes.values():
            for file in sorted(home.package.tree.glob("*.dist-info")) if home.package else ():
                if not (file / "RECORD").exists():
                    name = file.name.removesuffix(".dist-info").rpartition("-")[0]
                    self._take_name_and_version(home.installed, name, _KEPT)

    def _comes_from_host(self, distribution: Distribution) -> bool:
        """Whether the packaged code will use the copy where it is loaded."""
        name = normalised(distribution.name)
        return name in RUNTIME_ROOTS or name in self._externs

    def _describe(
        self,
        installed: Installed,
        distribution: Distribution,
        modules: tuple[str, ...],
        names: tuple[str, ...],
        why: str,
    ) -> None:
        key = normalised(distribution.name)
        contents = installed.contents_of(distribution)
        if contents is None or "METADATA" not in contents.metadata or key in self._distributions:
            return
        folder = metadata_folder(distribution.name, distribution.version)
        self._distributions[key] = PlannedDistribution(
            distribution.name, distribution.version, folder, modules
        )
        for name in names:
            if name in contents.metadata:
                source = str(contents.metadata[name])
                record = f"{folder}/{name}"
                owner = distribution.name
                file = PlannedFile(record, source, owner, why, FileKind.METADATA)
                self._files[record] = file

    @property
    def _externs(self) -> frozenset[str]:
        """The normalised names of the distributions that stay where the package is loaded."""
        if self._known_externs is None:
            self._known_externs = frozenset(self._find_externs())
        return self._known_externs

    _known_externs: frozenset[str] | None = None

    def _find_externs(self) -> Iterator[str]:
        asked: set[str] = set()
        for module, decision in self._decisions.items():
            is_extern = decision.action is Action.EXTERN and decision.location is not None
            if is_extern and root_of(module) not in asked:
                found = self._host.distribution_of(module, decision.location)
                if found is not None:
                    asked.add(root_of(module))
                    yield normalised(found.name)

    # -- files -------------------------------------------------------------------------------

    def _take_listed(
        self, installed: Installed, distribution: Distribution, homes: Sequence[Home]
    ) -> None:
        """The files that a distribution lists in the folders of its interned packages."""
        contents = installed.contents_of(distribution)
        if contents is None:
            return
        folders = {home.folder: home.record_folder for home in homes if home.record_folder}
        listed = [contents.folder / name for name in contents.listed if not is_code(name)]
        if not contents.listed:
            listed = [file for folder in folders for file in files_below(folder)]
        packages = {
            (contents.folder / name).parent
            for name in contents.listed
            if name.endswith("__init__.py") and name.rpartition("/")[2] == "__init__.py"
        }
        for file in listed:
            place = next((p for p in file.parents if p in packages or p in folders), None)
            if place not in folders:
                continue
            path = file.relative_to(place).as_posix()
            record = join_record(folders[place], path)
            if _is_listed_data(path):
                why = f"{distribution.name} lists it beside interned code"
                self._take_offered(Offer(file, record, distribution.name, why))
            elif self._native and is_loadable(file.name) and not is_tests(path):
                self._take_compiled(record, file, distribution.name, "interned code may load it")

    def _take_compiled_modules(self) -> None:
        for home in self._homes.values():
            if is_compiled(home.file.name):
                package = home.module.rpartition(".")[0]
                record = join_record(package_folder(package), home.file.name)
                self._take_compiled(record, home.file, home.module, "it is interned")

    def _take_libraries(self, installed: Installed, distribution: Distribution) -> None:
        """The shared libraries that a distribution keeps in a folder beside its packages."""
        contents = installed.contents_of(distribution)
        for name in contents.listed if contents is not None else ():
            if name.partition("/")[0].endswith(".libs") and contents is not None:
                why = "compiled modules need it"
                self._take_compiled(name, contents.folder / name, distribution.name, why)

    def _take_compiled(self, record: str, file: Path, owner: str, why: str) -> None:
        if file.is_file() and record not in self._files:
            self._files[record] = PlannedFile(record, str(file), owner, why, FileKind.COMPILED)

    def _take_offered(self, offer: Offer) -> None:
        known = self._files.get(offer.record)
        if known is not None:
            if known.source != str(offer.file):
                self._notes.append(_in_the_way(offer, known))
            return
        if self._budget.admits(offer.file, offer.owner, offer.most):
            file = PlannedFile(offer.record, str(offer.file), offer.owner, offer.why)
            self._files[offer.record] = file


def _kept(homes: Iterable[Home]) -> Iterator[Offer]:
    """What packages hold for the code that is taken from them, whatever the evidence was."""
    homes = list(homes)
    owners = {id(h.package): set[str]() for h in homes}
    for home in homes:
        owners[id(home.package)].add(home.module)
        if home.distribution is not None:
            owners[id(home.package)].add(home.distribution.name)
    for package in {id(h.package): h.package for h in homes if h.package is not None}.values():
        for record, owner in package.data_files().items():
            if owner in owners[id(package)]:
                yield Offer(package.tree / record, record, owner, _KEPT)


def is_data(name: str) -> bool:
    """Whether a file can go along as data: it is no code in any form."""
    return not (is_code(name) or is_compiled(name))


def _is_listed_data(path: str) -> bool:
    """Whether a distribution's file, named relative to an interned package, is data."""
    is_hidden = any(part.startswith(".") for part in path.split("/"))
    is_for_tools = path.endswith("py.typed")  # PEP 561: only type checkers look at it
    return is_data(path) and not (
        is_hidden or is_for_tools or is_tests(path) or "__pycache__/" in path
    )


def _in_the_way(offer: Offer, known: PlannedFile) -> Note:
    text = (
        f"{offer.file} is left out: it would be {offer.record} in the package, as {known.source} "
        "is. Move one of them into a package's folder"
    )
    return Note(NoteKind.FILES_LEFT_OUT, offer.owner, text)


def _left_out(budget: Budget) -> Iterator[Note]:
    for owner, files in budget.left_out.items():
        shown = ", ".join(f"{file} ({size / 2**20:,.0f} MiB)" for file, size in files.items())
        yield Note(
            NoteKind.FILES_LEFT_OUT,
            owner,
            f"left out for their size, although code of {owner} may read them: {shown}. If it "
            "does, save them: save_binary(package, name, contents)",
        )


class HoldingsPlanner:
    """Decides which files go along, and keeps what was asked for.

    Args:
        walker: knows where modules were found.
        host: the distributions of this interpreter.

    Attributes:
        native: whether compiled files of distributions with interned modules go along.
        given: the files of modules whose sources were given, where they came from files.
    """

    def __init__(self, walker: Walker, host: Installed) -> None:
        self.native = False
        self.given: dict[str, Path] = {}
        self._homes = Homes(walker, host, self.given)
        self._asked: dict[str, PlannedFile] = {}
        self._asked_metadata: dict[str, str] = {}
        self._found: tuple[object, Holdings] | None = None

    def find(self, decisions: Mapping[str, Decision]) -> Holdings:
        """What goes along with the interned modules among those that were decided."""
        key = (
            frozenset((module, d.action) for module, d in decisions.items()),
            (*self._asked, *self._asked_metadata, *self.given),
            self.native,
        )
        if self._found is None or self._found[0] != key:
            gathering = Gathering(decisions, self._homes, self.native)
            self._found = key, gathering.all(self._asked.values(), self._asked_metadata)
        return self._found[1]

    def trees(self, decisions: Mapping[str, Decision]) -> list[Path]:
        """The unpacked trees of the packages that interned modules come from."""
        homes = self._homes.of(interned(decisions)).values()
        return sorted({home.package.tree for home in homes if home.package is not None})

    def own_folders(self, decisions: Mapping[str, Decision]) -> set[Path]:
        """The folders of the user's own code that is interned."""
        homes = self._homes.of(interned(decisions)).values()
        return {home.folder for home in homes if not home.is_installed and home.package is None}

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
        homes = self._homes.of(interned(decisions)).values()
        kept = {
            owner
            for home in homes
            if home.package is not None and home.distribution is not None
            for owner in (home.module, home.distribution.name)
        }
        host = self._homes.host
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
        folders = record_folders(self._homes.of(interned(decisions)))
        budget = Budget()
        found = [
            PlannedFile(its_record, str(file), posixpath.dirname(its_record).replace("/", "."), why)
            for file in _looked_for(folders, PurePosixPath(record))
            for its_record in [record_in(folders, file)]
            if its_record is not None and its_record not in planned
            if is_data(file.name) and budget.admits(file)
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
