"""The child's surroundings: what is hidden from it, and what it asks its parent for.

Modules, distributions and files are hidden from everybody in this interpreter, not from packaged
code only: a library that stays outside the package must not find a hidden module either, because
where the package will be loaded, it is not there.

What a package turns out to miss is asked for where the import system, or the operating system, is
about to say that it is not there. So what code does about its absence (``try``, a default) does
not matter, and one run finds as much as possible.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from modpack.archive.layout import is_internal
from modpack.archive.module_index import IndexEntry, IndexEntryKind, ModuleIndex
from modpack.core.environment import RecordedEnvironment
from modpack.core.names import is_within
from modpack.core.names import normalized_distribution as normalized
from modpack.core.policy import TrustPolicy
from modpack.importer import PackageImporter
from modpack.loading.metadata import VisibleDistributions
from modpack.loading.namespace import Namespace
from modpack.selftest.process import (
    Answer,
    Answering,
    HiddenModules,
    ProbeLevel,
    Question,
    QuestionKind,
)

_LOOKS = frozenset({"open", "os.listdir", "os.scandir", "os.chdir"})
"""Audit events of reading a file or a folder, whose first argument is the path."""
_ASKING_FOR_SPECS = ("importlib.util", "modpack.loading.namespace")
_stat = os.stat


class HostIsolation:
    """Keeps what is hidden out of sight, and remembers who looked for it.

    Args:
        hidden: what is hidden.

    Attributes:
        refused: what was looked for, and by which module.
        asked: the outermost modules that were looked for, and by which module first.
    """

    def __init__(self, hidden: HiddenModules) -> None:
        self.refused: dict[str, str] = {}
        self.asked: dict[str, str] = {}
        self._hidden = hidden
        self._distributions = frozenset(hidden.distributions)
        self._places = tuple(f"{place}{os.sep}" for place in hidden.places)
        kept = (*sys.path, sys.prefix, sys.base_prefix)
        self._open = tuple(f"{p}{os.sep}" for p in kept if f"{p}{os.sep}".startswith(self._places))

    def install(self) -> None:
        """Begin. There is no end: this interpreter is for one self-test."""
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
        self.refused.setdefault(module, _name_of(_asking_frame()))
        return True

    def shown(self, distributions: Iterable[Any]) -> Iterable[Any]:
        """The distributions that may be seen."""
        for each in distributions:
            name = each.metadata["Name"]
            if name is None or normalized(name) not in self._distributions:
                yield each

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        path = _path_of(arguments[0]) if event in _LOOKS else None
        if path is None:
            return
        slashed = f"{path}{os.sep}"
        if slashed.startswith(self._places) and not slashed.startswith(self._open):
            self.refused.setdefault(path, _name_of(_asking_frame()))
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


class _Filtered:
    """A finder that does not find what is hidden."""

    def __init__(self, finder: Any, guard: HostIsolation) -> None:
        self._finder = finder
        self._guard = guard

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._guard.hides(fullname):
            return None
        if "." not in fullname and fullname not in self._guard.asked:
            self._guard.asked[fullname] = _name_of(_asking_frame())
        found: ModuleSpec | None = self._finder.find_spec(fullname, path, target)
        return found

    def find_distributions(self, *context: Any) -> Iterable[Any]:
        find = getattr(self._finder, "find_distributions", None)
        return self._guard.shown(find(*context)) if find is not None else ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


def _asking_frame() -> FrameType | None:
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


def _path_of(named: Any) -> str | None:
    """The path that a file is opened or asked for by; None for a descriptor."""
    is_path = isinstance(named, (str, bytes, os.PathLike))
    return os.path.abspath(os.fsdecode(named)) if is_path else None


def _name_of(frame: FrameType | None) -> str:
    return str(frame.f_globals.get("__name__", "?")) if frame is not None else "the interpreter"


class IncrementalImporter(PackageImporter):
    """Takes in modules and files that the package lacks.

    Args:
        file: the package.
        namespace: in which namespace it is loaded.
        tree: the folder that its code goes to, of this self-test alone. What the round before left
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
        self, recorded: RecordedEnvironment, digest: str, on_mismatch: str
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
        entries = {name: IndexEntry(name, IndexEntryKind.EXTERN) for name in externs}
        self._index = index._replace(entries={**entries, **index.entries})
        self._namespace.use(self._index)


def _remove_empty(folder: Path) -> None:
    """Folders that held only files of another round: a package must not be found there."""
    for place in sorted(folder.rglob("*"), key=lambda each: len(each.parts), reverse=True):
        if place.is_dir() and place.name != "__pycache__":
            if not any(inside.name != "__pycache__" for inside in place.iterdir()):
                shutil.rmtree(place)


class MissingResourceMonitor:
    """Stands at the places where something turns out to be missing.

    Args:
        importer: the package.
        ask: sends a question and returns the answer.
        eagerness: what is asked for.

    Attributes:
        has_skipped: whether there was more that a greater eagerness would have asked for.
    """

    def __init__(
        self, importer: IncrementalImporter, ask: Answering, eagerness: ProbeLevel
    ) -> None:
        self.has_skipped = False
        self._importer = importer
        self._ask = ask
        self._eagerness = eagerness
        self._asked: set[tuple[str, str]] = set()
        self._placeholders: set[str] = set()
        self._tree = f"{importer.tree}{os.sep}"
        self._state = threading.local()
        self._lock = threading.RLock()

    def install(self) -> None:
        """Begin; for an interpreter that does nothing else."""
        place = sys.meta_path.index(self._importer.namespace.finder)
        sys.meta_path.insert(place + 1, _FallbackFinder(self, only_shown=False))
        sys.meta_path.insert(place, _FallbackFinder(self, only_shown=True))
        self._importer.namespace.on_miss = self.module
        sys.addaudithook(self._audit)
        _watch_metadata(self)
        _watch_stat(self)

    def module(self, name: str) -> None:
        """Ask for a module by the path that packaged code writes."""
        for place in self._places_of(name):
            self._uncover(place)
        if not _is_probe() or self._probes():
            self.request("module", name)

    def file(self, path: str) -> None:
        """Ask for a file of the package's tree that is not there."""
        if path.startswith(self._tree):
            self._uncover(path)
            if not _exists(path):
                self.request("file", self._record(path))

    def probe(self, path: str) -> None:
        """Ask for a file whose absence is about to be told."""
        if path.startswith(self._tree) and not _exists(path) and self._probes():
            self.file(path)

    def folder(self, path: str) -> None:
        """Let a folder that is listed show everything that is in it where it comes from.

        What it shows is not there yet: it is asked for when it is imported or opened.
        """
        if not f"{path}{os.sep}".startswith(self._tree) or not self._probes():
            return
        answer = self._answer("folder", self._record(path))
        for name in answer.names if answer is not None else ():
            place = os.path.join(path, name)
            if name.endswith("/"):
                if not _exists(place):
                    os.mkdir(place)
                    self._placeholders.add(place.rstrip("/"))
            elif not _exists(place):
                with self._busy(), open(place, "xb"):
                    self._placeholders.add(place)

    def _probes(self) -> bool:
        """Whether to ask for what is only tested for."""
        probes = self._eagerness is ProbeLevel.PROBES
        self.has_skipped |= not probes
        return probes

    def _uncover(self, path: str) -> None:
        """Take away what only shows that there is something."""
        if path in self._placeholders:
            self._placeholders.discard(path)
            if not os.path.isdir(path):
                os.unlink(path)

    def finds(self, module: str) -> bool:
        """Whether a module is only shown by now, and has to be asked for."""
        return not self._placeholders.isdisjoint(self._places_of(module))

    def _places_of(self, module: str) -> tuple[str, str, str]:
        place = self._tree + module.replace(".", os.sep)
        return place, f"{place}.py", f"{place}{os.sep}__init__.py"

    def _record(self, path: str) -> str:
        return path[len(self._tree) :].replace(os.sep, "/")

    def request(self, kind: QuestionKind, name: str) -> bool:
        """Ask for something; tells whether it was given."""
        answer = self._answer(kind, name)
        if answer is None or not (answer.files or answer.externs):
            return False
        with self._busy():
            self._importer.take(answer.files, answer.externs)
        return True

    def _answer(self, kind: QuestionKind, name: str) -> Answer | None:
        """The answer to a question; None if it was asked before, or while one is dealt with."""
        with self._lock:
            if getattr(self._state, "is_busy", False) or (kind, name) in self._asked:
                return None
            self._asked.add((kind, name))
            with self._busy():
                return self._ask(Question(kind, name, *self._asker()))

    @contextmanager
    def _busy(self) -> Any:
        self._state.is_busy = True
        try:
            yield
        finally:
            self._state.is_busy = False

    def _asker(self) -> tuple[str | None, int | None]:
        """The packaged module that is at work, and its line."""
        frame: FrameType | None = _asking_frame()
        while frame is not None:
            if frame.f_globals.get("__modpack__") is self._importer:
                name = str(frame.f_globals.get("__name__"))
                return self._importer.namespace.local_name(name), frame.f_lineno
            frame = frame.f_back
        return None, None

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("open", "os.listdir", "os.scandir") or _by_importlib():
            return
        path = _path_of(arguments[0])
        if path is not None and event != "open":
            self.folder(path)
        elif path is not None and (not isinstance(arguments[1], str) or "r" in arguments[1]):
            self.file(path)


class _FallbackFinder(MetaPathFinder):
    """Asks for what the package's finder does not find.

    Args:
        asking: asks.
        only_shown: whether to ask for what a folder shows, and is not there yet. Such a one
            stands before the package's finder, which would take it for the file itself.
    """

    def __init__(self, asking: MissingResourceMonitor, only_shown: bool) -> None:
        self._asking = asking
        self._only_shown = only_shown

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        asking = self._asking
        finder = asking._importer.namespace.finder
        module = fullname[len(finder.prefix) :]
        is_ours = bool(finder.prefix) and fullname.startswith(finder.prefix)
        if not is_ours and module.partition(".")[0] not in finder.index.roots:
            return None
        if self._only_shown and not asking.finds(module):
            return None
        asking.module(module)
        return finder.find_spec(fullname, path, target)


def _is_probe() -> bool:
    """Whether somebody only wants to know if a module exists."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_name
        if name in ("import_statement", "load", "_find_and_load", "_gcd_import"):
            return False
        if name == "find_spec" and frame.f_globals.get("__name__") in _ASKING_FOR_SPECS:
            return True
        frame = frame.f_back
    return False


def _by_importlib() -> bool:
    """Whether it is the import system that reads: it is answered by finders, not by files."""
    frame: FrameType | None = sys._getframe(2)
    return frame is not None and frame.f_code.co_filename.startswith("<frozen importlib")


def _exists(path: str) -> bool:
    try:
        _stat(path)
    except (OSError, ValueError):
        return False
    return True


def _watch_stat(asking: MissingResourceMonitor) -> None:
    """Whoever asks whether a file is there calls :func:`os.stat`, which raises no audit event."""

    def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        full = None if _by_importlib() else _path_of(path)
        if full is not None:
            asking.probe(full)
        return _stat(path, *arguments, **options)

    os.stat = stat


def _watch_metadata(asking: MissingResourceMonitor) -> None:
    """Ask for metadata where packaged code does not see it, and for plugins that it looks for."""
    real, real_entry_points = VisibleDistributions.all, VisibleDistributions.entry_points

    def all_of(self: VisibleDistributions, name: str | None = None) -> Iterator[Any]:
        found = list(real(self, name))
        if not found and name is not None and asking.request("metadata", name):
            found = list(real(self, name))
        return iter(found)

    def entry_points(self: VisibleDistributions, group: str | None = None) -> Iterator[Any]:
        if group is not None:
            asking.request("plugins", group)
        return real_entry_points(self, group)

    VisibleDistributions.all = all_of  # type: ignore[method-assign]
    VisibleDistributions.entry_points = entry_points  # type: ignore[method-assign]
