"""What is known about the graph of objects that is being saved."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from modpack.core.names import root_of
from modpack.errors import ModpackError
from modpack.pickling.determinism import Ordering
from modpack.pickling.functions import SCRIPTS
from modpack.pickling.object_paths import HeldNames, reached_from

if TYPE_CHECKING:
    pass


def live_object(module: str, name: str) -> object:
    """What a name leads to in a module of this process; None if to nothing."""
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def is_where_it_says(obj: Any, name: str) -> bool:
    """Whether pickle will find a class or function by what it says about itself."""
    return live_object(str(obj.__module__), name) is obj


_PLATFORM = frozenset({"torch", *sys.stdlib_module_names}) - {*SCRIPTS}


def is_of_platform(module: str) -> bool:
    """Whether a module is torch's or the standard library's, which are there everywhere."""
    return root_of(module) in _PLATFORM


class Graph:
    """The objects that are saved together (:class:`modpack.pickling.base.Surroundings`).

    Args:
        attach: stores bytes in a record of their own.
        named: the reduction of an object that is found under its name; else raises.
    """

    def __init__(self, attach: Callable[[bytes], str], named: Callable[[Any], Any]) -> None:
        self.attach = attach
        self._named = named
        self._held = HeldNames(SCRIPTS)
        self._ordering = Ordering()
        self._roots: list[object] = []
        self._reached: set[int] = set()
        self._homes: set[str] = set()

    def add_root(self, root: object) -> None:
        """One more object that is saved, with everything that it holds."""
        self._roots.append(root)
        self._ordering.add_root(root)

    def ordered(self, members: Collection[Any]) -> list[Any] | None:
        """Members of a set in the order of every process; None if they are in it already."""
        return self._ordering.ordered(members)

    def keeps(self, obj: object) -> bool:
        """Whether an object will be alive after loading, without a weak reference to it."""
        if isinstance(obj, (type, FunctionType, BuiltinFunctionType)):
            return is_where_it_says(obj, obj.__qualname__) or self._reaches(obj)
        return isinstance(obj, ModuleType) or self._reaches(obj)

    def held_by_module(self, obj: object) -> tuple[ModuleType, str] | None:
        """The module that holds this very object, and the name.

        Only modules that are needed anyway count: those in which classes and functions of the
        graph live, torch's, and the standard library's. Others are the program that makes the
        objects, and must not become a part of them.
        """
        found = self._held.find(obj)
        if found:
            self._walk()
        needed = [m for m in found if m[0].__name__ in self._homes or is_of_platform(m[0].__name__)]
        return min(needed, key=lambda held: self._preference(obj, held[0].__name__), default=None)

    def _preference(self, obj: object, module: str) -> tuple[bool, bool, int, str]:
        """Which module to name, whatever else was imported, and in which order."""
        is_home = module == type(obj).__module__
        return not is_home, module not in self._homes, module.count("."), module

    def named(self, obj: object) -> Any:
        """The reduction of an object that is found under its own name; None if it is not."""
        try:
            return self._named(obj)
        except ModpackError:
            return None

    def _reaches(self, obj: object) -> bool:
        self._walk()
        return id(obj) in self._reached

    def _walk(self) -> None:
        while self._roots:
            reached_from(self._roots.pop(), self._reached, self._homes)
