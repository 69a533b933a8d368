"""Hides modules, distributions and files from everybody in this interpreter.

Not from packaged code only: a library that stays outside the package must not find a hidden module
either, because where the package will be loaded, it is not there.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec
from types import FrameType, ModuleType
from typing import Any

from modpack.resolution.distributions import normalised
from modpack.trial.hiding import Hidden, is_hidden

__all__ = ["Guard", "asking_frame"]

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
        if not is_hidden(module, self._hidden):
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
