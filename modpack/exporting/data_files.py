"""Which files may go into a package without anybody naming them, and how many bytes of them.

The files beside the user's own code that its sources say they read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from modpack.core.names import package_folder, parents
from modpack.core.plan import Note, NoteKind
from modpack.core.scan import FileRead, ReadKind
from modpack.discovery.walk import Walker
from modpack.exporting.module_locations import Home, record_in

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
            if not (is_code(name) or is_compiled(name) or is_private(name)):
                yield Path(place, name)


def _is_entered(folder: Path) -> bool:
    is_hidden = folder.name.startswith(".") or folder.name in _NOT_DATA
    has_own_code = (folder / "__init__.py").exists() or (folder / "pyvenv.cfg").exists()
    return not (is_hidden or has_own_code or folder.is_symlink())


class Budget:
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
class Offer:
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


def record_folders(homes: Mapping[str, Home]) -> dict[Path, str]:
    """The record folder of each folder that interned modules lie in, and of those around them."""
    folders: dict[Path, str] = {}
    for home in homes.values():
        place, record = home.folder, home.record_folder
        while folders.get(place) != record:  # else those around it are known as well
            folders.setdefault(place, record)
            if not record:
                break
            place, record = place.parent, record.rpartition("/")[0]
    return folders


def files_beside(homes: Mapping[str, Home], walker: Walker, notes: list[Note]) -> Iterator[Offer]:
    """The files that sources name, and those in folders that they read from.

    Of the files of installed distributions only those that a source names are offered: the
    others are known from the distribution's own list.

    Args:
        homes: where the interned modules are.
        walker: knows what their sources say.
        notes: takes what cannot be known.
    """
    folders = record_folders(homes)
    for home in homes.values():
        reads = walker.scan(home.module).reads
        if reads:
            yield from _Reader(home, homes, folders, notes).offers(reads)


class _Reader:
    """The reads of one module."""

    def __init__(
        self,
        home: Home,
        homes: Mapping[str, Home],
        folders: Mapping[Path, str],
        notes: list[Note],
    ) -> None:
        self._home = home
        self._homes = homes
        self._folders = folders
        self._notes = notes

    def offers(self, reads: tuple[FileRead, ...]) -> Iterator[Offer]:
        named = [read for read in reads if read.kind is ReadKind.NAME]
        placed = [(r, self._place(r)) for r in reads if r.kind is not ReadKind.NAME]
        known = [(read, place) for read, place in placed if place is not None]
        for read, place in known:
            if read.kind is ReadKind.FILE and not place.is_dir():
                yield from self._named(place, read)
            else:
                yield from self._in_folder(place, read)
        if not self._home.is_installed:
            searched = [*self._own_folders(), *(place for _, place in known)]
            for read in named:
                yield from self._by_name(read, searched)

    def _place(self, read: FileRead) -> Path | None:
        """The file or folder that is read; None if it belongs to no interned module."""
        folder: Path | None = self._home.folder
        if read.module is not None:
            folder = self._folder_of(read.module)
        return Path(os.path.normpath(folder / read.path)) if folder is not None else None

    def _folder_of(self, module: str) -> Path | None:
        """A package's folder, interned or below an interned one (``files("pkg.data")``)."""
        for package in (module, *parents(module)):
            home = self._homes.get(package)
            if home is not None:
                below = package_folder(module[len(package) + 1 :])
                return home.folder / below if home.is_package else home.folder
        return None

    def _own_folders(self) -> Iterator[Path]:
        """The module's folder and those around it, up to the outermost package's."""
        place, record = self._home.folder, self._home.record_folder
        yield place
        while "/" in record:
            place, record = place.parent, record.rpartition("/")[0]
            yield place

    def _named(self, file: Path, read: FileRead) -> Iterator[Offer]:
        record = record_in(self._folders, file)
        if record is None or is_code(file.name) or is_compiled(file.name) or not file.is_file():
            return
        if is_private(record) and not self._home.is_installed:
            module = self._home.module
            text = f"{file} looks like a secret and is left out, although {module} names it"
            self._notes.append(Note(NoteKind.FILES_LEFT_OUT, module, text))
        else:
            yield Offer(file, record, self._home.module, self._why(read, "names it"))

    def _by_name(self, read: FileRead, folders: list[Path]) -> Iterator[Offer]:
        for folder in folders:
            file = Path(os.path.normpath(folder / read.path))
            if file.is_file():
                yield from self._named(file, read)
                return

    def _in_folder(self, folder: Path, read: FileRead) -> Iterator[Offer]:
        """Files that only the run can name: all of a folder that is there for them."""
        is_for_data = folder not in self._folders
        if not folder.is_dir() or (self._home.is_installed and not is_for_data):
            return
        if not is_for_data and not self._folders[folder]:
            self._cannot_tell(folder, read)
            return
        most = MOST_BYTES_OF_A_FILE if self._home.is_installed else MOST_BYTES_UNNAMED
        why = self._why(read, "reads files in its folder")
        for file in files_below(folder, deep=is_for_data):
            record = record_in(self._folders, file)
            if record is not None and (is_for_data or is_data_like(file.name)):
                yield Offer(file, record, self._home.module, why, most)

    def _cannot_tell(self, folder: Path, read: FileRead) -> None:
        found = [file.name for file in files_below(folder, deep=False) if is_data_like(file.name)]
        if found:
            shown = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
            text = (
                f"{self._home.module} reads files in {folder} whose names are known at run time "
                f"only. That is no package's folder, so none of them goes along ({shown}). Save "
                'those that it needs: save_text("", name, text)'
            )
            place = f"{self._home.file}:{read.line}"
            self._notes.append(Note(NoteKind.FILES_UNKNOWN, self._home.module, text, place))

    def _why(self, read: FileRead, does: str) -> str:
        return f"{self._home.module} {does} (line {read.line})"
