"""Files that interned modules read: where modules are on this machine, and what is beside them.

For the user's own code, where any file may lie beside it, a file is included only if a source
says so, and if nothing about it looks like a secret or a checkpoint. Nothing is executed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol, runtime_checkable

from modpack.core.graph import CodeKind, Location
from modpack.core.names import join_record, module_record, package_folder, parents
from modpack.core.plan import Note, NoteKind
from modpack.core.scan import FileRead, ReadKind
from modpack.discovery.distributions import Distribution, DistributionIndex
from modpack.discovery.walk import Walker

MOST_BYTES_OF_A_FILE = 64 * 2**20
"""A larger file is left out, with a warning: it is more likely a checkpoint than a vocabulary."""
MOST_BYTES_OF_ALL = 256 * 2**20
MOST_BYTES_UNNAMED = 8 * 2**20
"""The same for a file of the user's that no source names, but that lies where one reads."""

_CODE = (".py", ".pyc", ".pyo", ".pyi", ".pyx", ".pxd", ".pxi", ".pyw", ".ipynb")
_LOADABLE = re.compile(r"\.(so|pyd|dll|dylib)(\.\d+)*$")
_FOR_LINKERS = (".a", ".lib", ".o", ".obj", ".exe")
_DATA = frozenset(
    {".bin", ".bpe", ".cfg", ".conf", ".csv", ".dat", ".gz", ".html", ".ini", ".j2", ".jinja"}
    | {".jinja2", ".json", ".jsonl", ".md", ".model", ".npy", ".npz", ".pkl", ".properties", ".pt"}
    | {".pth", ".rst", ".safetensors", ".spm", ".svg", ".template", ".tmpl", ".toml", ".tsv"}
    | {".txt", ".vocab", ".xml", ".yaml", ".yml", ".zip"}
)
_KEYS = frozenset({".crt", ".der", ".jks", ".kdbx", ".key", ".keystore", ".p12", ".pem", ".pfx"})
_SECRETS = (
    r"(.*\.env|id_(rsa|dsa|ecdsa|ed25519)|.*credentials?|.*secrets?|passwords?|.*api_?keys?)"
    r"(\.[a-z0-9]+)?"
)
_NOT_DATA = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})
_TESTS = frozenset({"test", "tests"})
_MOST_FILES_LISTED = 10_000


def is_code(name: str) -> bool:
    """Whether a file is code in Python, in any form: it goes along as a module or not at all."""
    return name.lower().endswith(_CODE)


def is_compiled(name: str) -> bool:
    """Whether a file is machine code.

    >>> is_compiled("libx.so.1"), is_compiled("kernel.cu")
    (True, False)
    """
    return is_loadable(name) or name.lower().endswith(_FOR_LINKERS)


def is_loadable(name: str) -> bool:
    """Whether a file is an extension module, or a shared library."""
    return _LOADABLE.search(name.lower()) is not None


def is_data_like(name: str) -> bool:
    """Whether a file looks like something that code reads, by its name alone."""
    return PurePosixPath(name.lower()).suffix in _DATA or ("." not in name and name.isupper())


def is_private(path: str) -> bool:
    """Whether a path is hidden, or looks like a secret: such files never go along by themselves.

    >>> is_private("pkg/.env"), is_private("pkg/server.key"), is_private("pkg/words.txt")
    (True, True, False)
    """
    *folders, name = path.split("/")
    if any(part.startswith(".") and part != ".." for part in (*folders, name)):
        return True
    is_key = PurePosixPath(name.lower()).suffix in _KEYS
    return is_key or bool(re.fullmatch(_SECRETS, name, re.IGNORECASE))


def is_tests(folders: str) -> bool:
    """Whether a path below a package leads into its tests."""
    return not _TESTS.isdisjoint(folders.split("/")[:-1])


def is_data(name: str) -> bool:
    """Whether a file can be included as data: it is no code in any form."""
    return not (is_code(name) or is_compiled(name))


def files_below(folder: Path, deep: bool = True) -> Iterator[Path]:
    """The data files in a folder, sorted; folders with code of their own are not entered.

    Args:
        folder: the folder.
        deep: whether to look into its subfolders.
    """
    listed = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(n for n in folders if deep and _is_entered(Path(place, n)))
        for name in sorted(names):
            listed += 1
            if listed > _MOST_FILES_LISTED:
                return
            if is_data(name) and not is_private(name):
                yield Path(place, name)


def _is_entered(folder: Path) -> bool:
    is_hidden = folder.name.startswith(".") or folder.name in _NOT_DATA
    has_own_code = (folder / "__init__.py").exists() or (folder / "pyvenv.cfg").exists()
    return not (is_hidden or has_own_code or folder.is_symlink())


class SizeLimit:
    """Counts the bytes of the files that go along.

    Attributes:
        left_out: the files that were too large, with their sizes in bytes, by owner.
    """

    def __init__(self) -> None:
        self.left_out: dict[str, dict[Path, int]] = {}
        self._left = MOST_BYTES_OF_ALL

    def admits(self, file: Path, owner: str = "", most: int = MOST_BYTES_OF_A_FILE) -> bool:
        """Whether there is room for a file, which is then taken off what is left.

        Args:
            file: the file; what is none, or cannot be read, is not admitted.
            owner: the module or distribution that it belongs to.
            most: the most bytes that it may have.
        """
        if not file.is_file() or not os.access(file, os.R_OK):
            return False
        size = file.stat().st_size
        if size > min(most, self._left):
            self.left_out.setdefault(owner, {})[file] = size
            return False
        self._left -= size
        return True


@dataclass(frozen=True)
class DataFileCandidate:
    """A file that may go along.

    Attributes:
        file: it.
        record: the record that it would become.
        owner: the module or distribution that it belongs to.
        why: the evidence.
        most: the most bytes that it may have.
    """

    file: Path
    record: str
    owner: str
    why: str
    most: int = MOST_BYTES_OF_A_FILE


@runtime_checkable
class LoadedPackage(Protocol):
    """A loaded package that modules are taken from."""

    tree: Path
    data_files: Callable[[], Mapping[str, str]]


@dataclass(frozen=True)
class ModuleLocation:
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
    installed: DistributionIndex
    distribution: Distribution | None = None
    package: LoadedPackage | None = None

    @property
    def folder(self) -> Path:
        """The folder in which it looks for what lies beside it: its own if it is a package."""
        return self.file.parent

    @property
    def record_folder(self) -> str:
        """The record folder that ``folder`` becomes; ``""`` is the top."""
        return package_folder(self.module if self.is_package else self.module.rpartition(".")[0])

    @property
    def is_installed(self) -> bool:
        """Whether an installed distribution lists its files."""
        return self.distribution is not None and not self.distribution.editable


@dataclass
class ModuleLocations:
    """The places of interned modules.

    Args:
        walker: knows where modules were found.
        host: the distributions of this interpreter.
        given: the files of modules whose sources were given, where they came from files.
    """

    walker: Walker
    host: DistributionIndex
    given: dict[str, Path] = field(default_factory=dict)
    _trees: dict[Path, DistributionIndex] = field(default_factory=dict, init=False)

    def of(self, modules: Iterable[str]) -> dict[str, ModuleLocation]:
        """The places of those modules that are files on this machine."""
        found = ((module, self._of(module)) for module in modules)
        return {module: location for module, location in found if location is not None}

    def _of(self, module: str) -> ModuleLocation | None:
        location = self.walker.locate(module)
        if location is None:
            return None
        environment: object = self.walker.environment_of(module)
        package = environment if isinstance(environment, LoadedPackage) else None
        installed = self.host
        if package is None:
            at = location.file
            file = self.given.get(location.module) if at is None else Path(at)
        else:
            installed = self._trees.setdefault(package.tree, DistributionIndex([str(package.tree)]))
            file = package.tree / module_record(location.module, location.is_package)
            if location.kind is CodeKind.EXTENSION:
                folder = package_folder(location.module.rpartition(".")[0])
                file = package.tree / folder / Path(location.file or "").name
        if file is None or not file.is_file():  # a folder only, or no file at all
            return None
        is_package = location.is_package
        real = Location(module, location.kind, str(file), is_package, location.search)
        distribution = installed.distribution_of(module, real)
        return ModuleLocation(module, file, is_package, installed, distribution, package)


def record_folders(locations: Mapping[str, ModuleLocation]) -> dict[Path, str]:
    """The record folder of each folder that interned modules lie in, and of those around them."""
    folders: dict[Path, str] = {}
    for location in locations.values():
        place, record = location.folder, location.record_folder
        while folders.get(place) != record:  # else those around it are known as well
            folders.setdefault(place, record)
            if not record:
                break
            place, record = place.parent, record.rpartition("/")[0]
    return folders


def record_in(folders: Mapping[Path, str], file: Path) -> str | None:
    """The record of a file in, or below, one of the folders; None if it is in none."""
    for place in file.parents:
        if place in folders:
            return join_record(folders[place], file.relative_to(place).as_posix())
    return None


def files_beside(
    locations: Mapping[str, ModuleLocation], walker: Walker, notes: list[Note]
) -> Iterator[DataFileCandidate]:
    """The files that sources name, and those in folders that they read from.

    Of the files of installed distributions only those that a source names are offered: the
    others are known from the distribution's own list.

    Args:
        locations: where the interned modules are.
        walker: knows what their sources say.
        notes: takes what cannot be known.
    """
    folders = record_folders(locations)
    for location in locations.values():
        reads = walker.scan(location.module).reads
        if reads:
            yield from _ModuleReads(location, locations, folders, notes).candidates(reads)


@dataclass
class _ModuleReads:
    """The files that one module reads."""

    location: ModuleLocation
    locations: Mapping[str, ModuleLocation]
    folders: Mapping[Path, str]
    notes: list[Note]

    def candidates(self, reads: tuple[FileRead, ...]) -> Iterator[DataFileCandidate]:
        searched = [self.location.folder]
        record = self.location.record_folder
        while "/" in record:  # up to the outermost package's folder
            searched.append(searched[-1].parent)
            record = record.rpartition("/")[0]
        for read in (each for each in reads if each.kind is not ReadKind.NAME):
            folder = self._folder_of(read.module)
            if folder is None:  # it belongs to no interned module
                continue
            place = Path(os.path.normpath(folder / read.path))
            searched.append(place)
            if read.kind is ReadKind.FILE and not place.is_dir():
                yield from self._named(place, read)
            else:
                yield from self._in_folder(place, read)
        if not self.location.is_installed:
            for read in (each for each in reads if each.kind is ReadKind.NAME):
                files = (Path(os.path.normpath(folder / read.path)) for folder in searched)
                file = next((each for each in files if each.is_file()), None)
                if file is not None:
                    yield from self._named(file, read)

    def _folder_of(self, module: str | None) -> Path | None:
        """A package's folder, interned or below an interned one (``files("pkg.data")``)."""
        if module is None:
            return self.location.folder
        for package in (module, *parents(module)):
            found = self.locations.get(package)
            if found is not None:
                below = package_folder(module[len(package) + 1 :])
                return found.folder / below if found.is_package else found.folder
        return None

    def _named(self, file: Path, read: FileRead) -> Iterator[DataFileCandidate]:
        record = record_in(self.folders, file)
        if record is None or not is_data(file.name) or not file.is_file():
            return
        if is_private(record) and not self.location.is_installed:
            module = self.location.module
            text = f"{file} looks like a secret and is left out, although {module} names it"
            self.notes.append(Note(NoteKind.FILES_LEFT_OUT, module, text))
        else:
            yield DataFileCandidate(file, record, self.location.module, self._why(read, "names it"))

    def _in_folder(self, folder: Path, read: FileRead) -> Iterator[DataFileCandidate]:
        """Files that only the run can name: all of a folder that is there for them."""
        is_for_data = folder not in self.folders
        if not folder.is_dir() or (self.location.is_installed and not is_for_data):
            return
        if not is_for_data and not self.folders[folder]:
            found = (file.name for file in files_below(folder, deep=False))
            self._note_unknown(folder, read, [name for name in found if is_data_like(name)])
            return
        most = MOST_BYTES_OF_A_FILE if self.location.is_installed else MOST_BYTES_UNNAMED
        why = self._why(read, "reads files in its folder")
        for file in files_below(folder, deep=is_for_data):
            record = record_in(self.folders, file)
            if record is not None and (is_for_data or is_data_like(file.name)):
                yield DataFileCandidate(file, record, self.location.module, why, most)

    def _note_unknown(self, folder: Path, read: FileRead, found: list[str]) -> None:
        if found:
            shown = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
            text = (
                f"{self.location.module} reads files in {folder} whose names are known at run time "
                f"only. That is no package's folder, so none of them goes along ({shown}). Save "
                'those that it needs: save_text("", name, text)'
            )
            place = f"{self.location.file}:{read.line}"
            self.notes.append(Note(NoteKind.FILES_UNKNOWN, self.location.module, text, place))

    def _why(self, read: FileRead, does: str) -> str:
        return f"{self.location.module} {does} (line {read.line})"
