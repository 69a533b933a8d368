"""Asks the exporting process for what a package turns out to miss, while it runs.

Everything is asked for where the import system, or the operating system, is about to say that it
is not there. So what code does about its absence (``try``, a default) does not matter, and one run
finds as much as possible.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

from modpack.loading.metadata import VisibleDistributions
from modpack.selftest.child_isolation import GrowingImporter, asking_frame
from modpack.selftest.process import Answer, Answering, Question, QuestionKind


class Eagerness(IntEnum):
    """What is asked for."""

    NOTHING = 0
    """Nothing: the package must do with what it holds."""
    USES = 1
    """What is imported, opened, or looked up by name."""
    PROBES = 2
    """Also what is only tested for (``find_spec``, ``exists``), and what is in a folder."""


class Asking:
    """Stands at the places where something turns out to be missing.

    Args:
        importer: the package.
        ask: sends a question and returns the answer.
        eagerness: what is asked for.

    Attributes:
        has_skipped: whether there was more that a greater eagerness would have asked for.
    """

    def __init__(self, importer: GrowingImporter, ask: Answering, eagerness: Eagerness) -> None:
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
        place = sys.meta_path.index(self._importer.finder)
        sys.meta_path.insert(place + 1, _Around(self, only_shown=False))
        sys.meta_path.insert(place, _Around(self, only_shown=True))
        self._importer.namespace.tell_misses(self.module)
        sys.addaudithook(self._audit)
        _watch_metadata(self)
        _watch_stat(self)

    def module(self, name: str) -> None:
        """Ask for a module by the path that packaged code writes."""
        record = name.replace(".", "/")
        for shown in (record, f"{record}.py", f"{record}/__init__.py"):
            self._uncover(self._tree + shown.replace("/", os.sep))
        if not _is_probe() or self._probes():
            self._request("module", name)

    def file(self, path: str) -> None:
        """Ask for a file of the package's tree that is not there."""
        if path.startswith(self._tree):
            self._uncover(path)
            if not _exists(path):
                self._request("file", self._record(path))

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
        self.has_skipped |= self._eagerness < Eagerness.PROBES
        return self._eagerness >= Eagerness.PROBES

    def _uncover(self, path: str) -> None:
        """Take away what only shows that there is something."""
        if path in self._placeholders:
            self._placeholders.discard(path)
            if not os.path.isdir(path):
                os.unlink(path)

    def metadata(self, distribution: str) -> bool:
        """Ask for the metadata of a distribution; tells whether it was given."""
        return self._request("metadata", distribution)

    def plugins(self, group: str) -> None:
        """Ask for what the live process has loaded from a group of entry points."""
        self._request("plugins", group)

    def finds(self, module: str) -> bool:
        """Whether a module is only shown by now, and has to be asked for."""
        record = self._tree + module.replace(".", os.sep)
        places = (record, f"{record}.py", f"{record}{os.sep}__init__.py")
        return not self._placeholders.isdisjoint(places)

    def _record(self, path: str) -> str:
        return path[len(self._tree) :].replace(os.sep, "/")

    def _request(self, kind: QuestionKind, name: str) -> bool:
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
        frame: FrameType | None = asking_frame()
        while frame is not None:
            if frame.f_globals.get("__modpack__") is self._importer:
                name = str(frame.f_globals.get("__name__"))
                return self._importer.namespace.local_name(name) or name, frame.f_lineno
            frame = frame.f_back
        return None, None

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode = arguments[0], arguments[1]
            is_read = not isinstance(mode, str) or "r" in mode
            if isinstance(path, (str, bytes, os.PathLike)) and is_read and not _by_importlib():
                self.file(os.path.abspath(os.fsdecode(path)))
        elif event in ("os.listdir", "os.scandir") and not _by_importlib():
            path = arguments[0]
            if isinstance(path, (str, bytes, os.PathLike)):
                self.folder(os.path.abspath(os.fsdecode(path)))


class _Around(MetaPathFinder):
    """Asks for what the package's finder does not find.

    Args:
        asking: asks.
        only_shown: whether to ask for what a folder shows, and is not there yet. Such a one
            stands before the package's finder, which would take it for the file itself.
    """

    def __init__(self, asking: Asking, only_shown: bool) -> None:
        self._asking = asking
        self._only_shown = only_shown

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        asking = self._asking
        finder = asking._importer.finder
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


_ASKING_FOR_SPECS = ("importlib.util", "modpack.loading.redirect")


def _by_importlib() -> bool:
    """Whether it is the import system that reads: it is answered by finders, not by files."""
    frame: FrameType | None = sys._getframe(2)
    return frame is not None and frame.f_code.co_filename.startswith("<frozen importlib")


_stat = os.stat


def _exists(path: str) -> bool:
    try:
        _stat(path)
    except (OSError, ValueError):
        return False
    return True


def _watch_stat(asking: Asking) -> None:
    """Whoever asks whether a file is there calls :func:`os.stat`, which raises no audit event."""

    def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if isinstance(path, (str, bytes, os.PathLike)) and not _by_importlib():
            asking.probe(os.path.abspath(os.fsdecode(path)))
        return _stat(path, *arguments, **options)

    os.stat = stat


def _watch_metadata(asking: Asking) -> None:
    """Ask for metadata where packaged code does not see it, and for plugins that it looks for."""
    real, real_entry_points = VisibleDistributions.all, VisibleDistributions.entry_points

    def all_of(self: VisibleDistributions, name: str | None = None) -> Iterator[Any]:
        found = list(real(self, name))
        if not found and name is not None and asking.metadata(name):
            found = list(real(self, name))
        return iter(found)

    def entry_points(self: VisibleDistributions, group: str | None = None) -> Iterator[Any]:
        if group is not None:
            asking.plugins(group)
        return real_entry_points(self, group)

    VisibleDistributions.all = all_of  # type: ignore[method-assign]
    VisibleDistributions.entry_points = entry_points  # type: ignore[method-assign]
