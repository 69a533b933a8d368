"""Where interned modules are on this machine, and which record each folder of theirs becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

from modpack.core.graph import CodeKind, Location
from modpack.core.names import join_record, module_record, package_folder
from modpack.discovery.distributions import Distribution, DistributionContents, DistributionIndex
from modpack.discovery.walk import Walker


class Installed(Protocol):
    """The distributions of one place, as far as files are concerned."""

    def distribution_of(self, module: str, location: Location | None) -> Distribution | None:
        """The distribution that provides a module; None for loose code."""

    def contents_of(self, distribution: Distribution) -> DistributionContents | None:
        """The files of a distribution."""

    def named(self, name: str) -> Distribution | None:
        """The installed distribution of a name."""

    def is_published(self, file: str, content: bytes) -> bool:
        """Whether an index has a file with this content."""


@runtime_checkable
class Unpacked(Protocol):
    """A loaded package that modules are taken from."""

    tree: Path
    data_files: Callable[[], Mapping[str, str]]


class NothingInstalled:
    """A place without distributions."""

    def distribution_of(self, module: str, location: Location | None) -> Distribution | None:
        """None: there is none."""
        return None

    def contents_of(self, distribution: Distribution) -> DistributionContents | None:
        """None: there is none."""
        return None

    def named(self, name: str) -> Distribution | None:
        """None: there is none."""
        return None

    def is_published(self, file: str, content: bytes) -> bool:
        """No: nothing was installed."""
        return False


@dataclass(frozen=True)
class Home:
    """An interned module's place on this machine.

    Attributes:
        module: its path.
        file: the file that holds it.
        is_package: whether it is a package's ``__init__``.
        installed: the distributions around it.
        distribution: the one that it belongs to.
        package: the package that it comes from, when one is exported again.
    """

    module: str
    file: Path
    is_package: bool
    installed: Installed
    distribution: Distribution | None = None
    package: Unpacked | None = None

    @property
    def folder(self) -> Path:
        """The folder in which it looks for what lies beside it: its own if it is a package."""
        return self.file.parent

    @property
    def record_folder(self) -> str:
        """The record folder that ``folder`` becomes; ``""`` is the top."""
        package = self.module if self.is_package else self.module.rpartition(".")[0]
        return package_folder(package)

    @property
    def is_installed(self) -> bool:
        """Whether an installed distribution lists its files."""
        return self.distribution is not None and not self.distribution.editable


@dataclass
class Homes:
    """The places of all interned modules.

    Args:
        walker: knows where modules were found.
        host: the distributions of this interpreter.
        given: the files of modules whose sources were given, where they came from files.
    """

    walker: Walker
    host: Installed
    given: Mapping[str, Path] = field(default_factory=dict)
    _last: tuple[object, Mapping[str, Home]] | None = field(default=None, init=False)

    def of(self, modules: Iterable[str]) -> Mapping[str, Home]:
        """The places of those modules that are files on this machine.

        They are looked up once for all who ask for the same modules in a row.
        """
        key = (tuple(modules), tuple(self.given))
        if self._last is None or self._last[0] != key:
            homes = ((module, self._of(module)) for module in key[0])
            self._last = key, {module: home for module, home in homes if home is not None}
        return self._last[1]

    def _of(self, module: str) -> Home | None:
        location = self.walker.locate(module)
        if location is None:
            return None
        environment = self.walker.environment_of(module)
        package = self._as_package(environment)
        installed = self.host if package is None else self._in_tree(package.tree)
        place = self._real(location, package.tree if package is not None else None)
        if place is None:
            return None
        real = location
        if location.module != module or location.file != str(place):
            real = Location(module, location.kind, str(place), location.is_package, location.search)
        distribution = installed.distribution_of(module, real)
        return Home(module, place, location.is_package, installed, distribution, package)

    def _real(self, location: Location, tree: Path | None) -> Path | None:
        """The file that holds a module; None if it is a folder only, or no file at all."""
        module = location.module
        if tree is not None:
            found: Path | None = tree / module_record(module, location.is_package)
            if location.kind is CodeKind.EXTENSION:
                folder = tree / package_folder(module.rpartition(".")[0])
                found = folder / Path(location.file or "").name
        else:
            found = Path(location.file) if location.file is not None else self.given.get(module)
        return found if found is not None and found.is_file() else None

    def _in_tree(self, tree: Path) -> Installed:
        if tree not in self._trees:
            self._trees[tree] = DistributionIndex([str(tree)])
        return self._trees[tree]

    @cached_property
    def _trees(self) -> dict[Path, Installed]:
        return {}

    def _as_package(self, environment: object) -> Unpacked | None:
        """An environment that is a package; asking a protocol takes long, and there are few."""
        if id(environment) not in self._packages:
            found = environment if isinstance(environment, Unpacked) else None
            self._packages[id(environment)] = found
        return self._packages[id(environment)]

    @cached_property
    def _packages(self) -> dict[int, Unpacked | None]:
        return {}


def record_in(folders: Mapping[Path, str], file: Path) -> str | None:
    """The record of a file in, or below, one of the folders; None if it is in none.

    Args:
        folders: the record folder of each folder on this machine.
        file: the file.
    """
    for place in file.parents:
        if place in folders:
            return join_record(folders[place], file.relative_to(place).as_posix())
    return None
