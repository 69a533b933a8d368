"""The child's surroundings: what is hidden from it, and an importer whose package can grow.

Modules, distributions and files are hidden from everybody in this interpreter, not from packaged
code only: a library that stays outside the package must not find a hidden module either, because
where the package will be loaded, it is not there.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from modpack.archive.layout import is_internal
from modpack.archive.module_index import Entry, EntryKind, ModuleIndex
from modpack.core.environment import RecordedEnvironment
from modpack.core.names import is_within
from modpack.core.names import normalised_distribution as normalised
from modpack.core.policy import TrustPolicy
from modpack.importer import PackageImporter
from modpack.loading.finder import PackageFinder
from modpack.loading.namespace import Namespace
from modpack.selftest.process import Hidden

_READS = {"open": 0, "os.listdir": 0, "os.scandir": 0, "os.chdir": 0}
"""Audit events of reading a file or a folder, and which argument is the path."""


class Guard:
    """Keeps what is hidden out of sight, and remembers who looked for it.

    Args:
        hidden: what is hidden.

    Attributes:
        refused: what was looked for, and by which module.
        asked: the outermost modules that were looked for, and by which module first.
    """

    def __init__(self, hidden: Hidden) -> None:
        self.refused: dict[str, str] = {}
        self.asked: dict[str, str] = {}
        self._hidden = hidden
        self._distributions = frozenset(hidden.distributions)
        self._places = tuple(f"{place}{os.sep}" for place in hidden.places)
        kept = (*sys.path, sys.prefix, sys.base_prefix)
        self._open = tuple(f"{p}{os.sep}" for p in kept if f"{p}{os.sep}".startswith(self._places))

    def install(self) -> None:
        """Begin. There is no end: this interpreter is for one trial."""
        sys.meta_path[:] = [
            finder if finder in (BuiltinImporter, FrozenImporter) else _Filtered(finder, self)
            for finder in sys.meta_path
        ]
        if self._places:
            sys.addaudithook(self._audit)

    def hides(self, module: str) -> bool:
        """Whether a module is to be absent; remembers the question."""
        if not any(is_within(module, name) for name in self._hidden.modules):
            return False
        self.refused.setdefault(module, _name_of(asking_frame()))
        return True

    def shown(self, distributions: Iterable[Any]) -> Iterable[Any]:
        """The distributions that may be seen."""
        for each in distributions:
            name = each.metadata["Name"]
            if name is None or normalised(name) not in self._distributions:
                yield each

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _READS:
            return
        path = arguments[_READS[event]]
        if isinstance(path, (str, bytes, os.PathLike)):
            self._refuse(os.path.abspath(os.fsdecode(path)))

    def _refuse(self, path: str) -> None:
        slashed = f"{path}{os.sep}"
        if slashed.startswith(self._places) and not slashed.startswith(self._open or ("\0",)):
            self.refused.setdefault(path, _name_of(asking_frame()))
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


class _Filtered:
    """A finder that does not find what is hidden."""

    def __init__(self, finder: Any, guard: Guard) -> None:
        self._finder = finder
        self._guard = guard

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._guard.hides(fullname):
            return None
        if "." not in fullname and fullname not in self._guard.asked:
            self._guard.asked[fullname] = _name_of(asking_frame())
        found: ModuleSpec | None = self._finder.find_spec(fullname, path, target)
        return found

    def find_distributions(self, *context: Any) -> Iterable[Any]:
        find = getattr(self._finder, "find_distributions", None)
        return self._guard.shown(find(*context)) if find is not None else ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


def asking_frame() -> FrameType | None:
    """The innermost frame of code that is neither the import system's nor modpack's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_machinery(frame):
        frame = frame.f_back
    return frame


def _is_machinery(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    if file.startswith("<frozen") or file == "<string>":
        return True
    name = str(frame.f_globals.get("__name__", ""))
    return name.startswith(("modpack.", "importlib.", "genericpath", "posixpath", "ntpath"))


def _name_of(frame: FrameType | None) -> str:
    return str(frame.f_globals.get("__name__", "?")) if frame is not None else "the interpreter"


class GrowingImporter(PackageImporter):
    """Takes in modules and files that the package lacks.

    Args:
        file: the package.
        namespace: in which namespace it is loaded.
        tree: the folder that its code goes to, of this trial alone. What the round before left
            there is used again, bytecode included: most of it is the same.
        policy: what it may ask for; None for anything.
    """

    def __init__(
        self, file: str, namespace: str, tree: Path, policy: TrustPolicy | None = None
    ) -> None:
        self._folder = tree
        self._taken: set[str] = set()
        super().__init__(file, namespace=namespace, policy=policy)

    def _check_environment(
        self, recorded: RecordedEnvironment, digest: str, strict: bool
    ) -> Mapping[str, str | None]:
        """Whoever started this interpreter has compared it: this one has the same."""
        return {}

    def _unpacked(self, sizes: dict[str, int]) -> Path:
        known = {self._folder / record: record for record in sizes}
        self._folder.mkdir(parents=True, exist_ok=True)
        for file in [each for each in self._folder.rglob("*") if each.is_file()]:
            if file not in known and "__pycache__" not in file.parts:
                file.unlink()
        for file, record in known.items():
            self._put(file, self._archive.read(record))
        _remove_empty(self._folder)
        return self._folder

    def _put(self, file: Path, content: bytes) -> None:
        """Write a file that is not there as it should be, and drop the bytecode of another."""
        if file.is_file() and file.read_bytes() == content:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        for old in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            old.unlink()
        file.write_bytes(content)

    @property
    def tree(self) -> Path:
        """The folder with the package's files."""
        return self._tree

    @property
    def namespace(self) -> Namespace:
        """The names under which its modules live."""
        return self._namespace

    @property
    def finder(self) -> PackageFinder:
        """What finds its modules."""
        return self._namespace.finder

    @property
    def module_index(self) -> ModuleIndex:
        """What it holds by now."""
        return self._index

    def take(self, files: Mapping[str, bytes], externs: Iterable[str] = ()) -> None:
        """Add files, sources among them, and modules that may be imported from here.

        Args:
            files: contents by record.
            externs: module paths.
        """
        for record, content in files.items():
            self._put(self._tree / record, content)
        self._taken.update(files)
        listed = [name for name in self._archive.names() if not is_internal(name)]
        known: dict[str, str | None] = {**self._index.externs, **dict.fromkeys(externs)}
        hides = self._index.hides_distributions
        records = [*listed, *sorted(self._taken)]
        index = ModuleIndex.build(records, known, hides, policy=self._index.policy)
        # A local import of what was not known when it was compiled asks for it by this name.
        entries = {name: Entry(name, EntryKind.EXTERN) for name in externs}
        self._index = index._replace(entries={**entries, **index.entries})
        self._namespace.use(self._index)


def _remove_empty(folder: Path) -> None:
    """Folders that held only files of another round: a package must not be found there."""
    for place in sorted(folder.rglob("*"), key=lambda each: len(each.parts), reverse=True):
        if place.is_dir() and place.name != "__pycache__":
            if not any(inside.name != "__pycache__" for inside in place.iterdir()):
                shutil.rmtree(place)
