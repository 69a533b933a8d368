"""The objects that are saved together: by which names modules hold them, and in which order.

A set has the order of its members' hashes, and those of texts and of most objects differ from
process to process. A package must not: what is written is ordered by what the members are.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
from collections.abc import Callable, Collection
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from modpack.core.names import root_of
from modpack.errors import ModpackError
from modpack.pickling.functions import SCRIPTS
from modpack.pickling.object_paths import objects_in, reached_from

_SETS = (set, frozenset)
_SAME_HASHES = frozenset({int, bool, float})
"""Types whose hashes are the same in every process."""
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by Python code, as lists and dicts are not
_PROTOCOL = 4
_PLATFORM = frozenset({"torch", *sys.stdlib_module_names}) - {*SCRIPTS}
_FOUND_OTHERWISE = (
    *(ModuleType, FunctionType, BuiltinFunctionType, type),
    *(str, bytes, int, float, complex, type(None), list, tuple, dict, set, frozenset),
)


def live_object(module: str, name: str) -> object:
    """What a name leads to in a module of this process; None if to nothing."""
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def is_where_it_says(obj: Any, name: str) -> bool:
    """Whether pickle will find a class or function by what it says about itself."""
    return live_object(str(obj.__module__), name) is obj


def name_in_module(obj: object, module: str) -> str | None:
    """The name under which a loaded module holds an object; None if it does not."""
    found = sys.modules.get(module)
    contents = vars(found) if isinstance(found, ModuleType) else {}
    return next((name for name, value in list(contents.items()) if value is obj), None)


def is_of_platform(module: str) -> bool:
    """Whether a module is torch's or the standard library's, which are there everywhere."""
    return root_of(module) in _PLATFORM


class ObjectGraph:
    """The objects that are saved together.

    Args:
        attach: stores bytes in a record of their own; returns its name.
        named: the reduction of an object that is found under its name; else raises.
    """

    def __init__(self, attach: Callable[[bytes], str], named: Callable[[Any], Any]) -> None:
        self.attach = attach
        self._named = named
        self._held: dict[int, list[tuple[object, ModuleType, str]]] | None = None
        self._ordering = Ordering()
        self.ordered = self._ordering.ordered
        self._roots: list[object] = []
        self._reached: set[int] = set()
        self._homes: set[str] = set()

    def add_root(self, root: object) -> None:
        """One more object that is saved, with everything that it holds."""
        self._roots.append(root)
        self._ordering.add_root(root)

    def keeps(self, obj: Any) -> bool:
        """Whether an object will be alive after loading, without a weak reference to it."""
        if isinstance(obj, ModuleType):
            return True
        is_named = isinstance(obj, (type, FunctionType, BuiltinFunctionType))
        if is_named and is_where_it_says(obj, obj.__qualname__):
            return True
        self._walk()
        return id(obj) in self._reached

    def held_by_module(self, obj: object) -> tuple[ModuleType, str] | None:
        """The module that holds this very object, and the name.

        Only modules that are needed anyway count: those in which classes and functions of the
        graph live, torch's, and the standard library's. Others are the program that makes the
        objects, and must not become a part of them.
        """
        if self._held is None:
            self._held = _held_by_modules()
        found = [(m, name) for value, m, name in self._held.get(id(obj), ()) if value is obj]
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

    def _walk(self) -> None:
        while self._roots:
            reached_from(self._roots.pop(), self._reached, self._homes)


def _held_by_modules() -> dict[int, list[tuple[object, ModuleType, str]]]:
    """By their ids, the objects that modules hold under a name, in the order of their import."""
    held: dict[int, list[tuple[object, ModuleType, str]]] = {}
    for path, module in list(sys.modules.items()):
        is_itself = issubclass(type(module), ModuleType) and vars(module).get("__name__") == path
        for name, value in list(vars(module).items()) if is_itself and path not in SCRIPTS else ():
            if not issubclass(type(value), _FOUND_OTHERWISE):
                held.setdefault(id(value), []).append((value, module, name))
    return held


class Ordering:
    """Orders members of sets, for one pickle.

    Members that are texts or bytes are compared as such, others by what a pickle of them alone
    would say. Where it comes to objects that are what they are by their identity, it counts where
    they are reached from the saved objects, in any other way than through a set.
    """

    def __init__(self) -> None:
        self._roots: list[object] = []
        self._places: dict[int, tuple[object, int]] = {}

    def add_root(self, root: object) -> None:
        """One more object that is saved, with everything that it holds."""
        self._roots.append(root)

    def ordered(self, members: Collection[Any]) -> list[Any] | None:
        """Members of a set in the order of every process; None if they are in it already."""
        kinds = set(map(type, members))
        if len(members) < 2 or kinds <= _SAME_HASHES:
            return None
        return sorted(members, key=None if kinds in ({str}, {bytes}) else self.key)

    def key(self, member: object) -> bytes:
        """What a member is ordered by."""
        buffer = io.BytesIO()
        try:
            _Describing(buffer, self).dump(member)
        except Exception:  # an object's own methods may raise anything: saving it will tell
            return f"{type(member).__module__}.{type(member).__qualname__}".encode()
        return buffer.getvalue()

    def place(self, obj: object) -> int:
        """When an object is met on the way from the saved ones; -1 if only sets lead to it."""
        while self._roots:
            for each in objects_in(self._roots.pop(0), closed=_SETS):
                self._places.setdefault(id(each), (each, len(self._places)))
        known = self._places.get(id(obj))
        return -1 if known is None else known[1]


class _Describing(pickle.Pickler):
    """Writes what a member is, to be compared and not to be read."""

    def __init__(self, buffer: io.BytesIO, order: Ordering) -> None:
        super().__init__(buffer, _PROTOCOL)
        self._order = order

    def persistent_id(self, obj: Any) -> Any:
        """What stands for an object in the description; None to look into it."""
        kind = type(obj)
        if issubclass(kind, (type, FunctionType, BuiltinFunctionType)):
            line = getattr(getattr(obj, "__code__", None), "co_firstlineno", 0)
            return obj.__module__, obj.__qualname__, line, self._order.place(obj)
        if issubclass(kind, ModuleType):
            return (obj.__name__,)
        if issubclass(kind, _SETS):
            named = f"{kind.__module__}.{kind.__qualname__}"
            return named, sorted(map(self._order.key, obj)), getattr(obj, "__dict__", None)
        own: Any = kind.__hash__
        is_tensor = issubclass(kind, torch.Tensor)
        if own is not None and own is not object.__hash__ and not is_tensor:
            return None  # equal ones are alike, wherever they are
        place = self._order.place(obj) if kind.__flags__ & _HEAP else -1
        if place >= 0:
            return (place,)
        if not is_tensor:
            return None
        values = obj.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest = hashlib.sha256(bytes(values.tolist())).digest()
        return str(obj.dtype), list(obj.shape), digest
