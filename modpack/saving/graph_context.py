"""The graph of objects that are saved together: module attributes, and the order of sets.

A set iterates in the order of its members' hashes, which for strings and most objects differ
between processes. Packages must be reproducible, so members are sorted by their content.
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
from modpack.saving.function_source import is_found_by_name, is_made_by_python
from modpack.saving.object_paths import add_reachable, iter_objects

_SETS = (set, frozenset)
_SAME_HASHES = frozenset({int, bool, float})
"""Types with the same hashes in every process."""
_PROTOCOL = 4
_PLATFORM = frozenset({"torch", *sys.stdlib_module_names}) - {*SCRIPTS}
_NOT_INDEXED = (
    *(ModuleType, FunctionType, BuiltinFunctionType, type),
    *(str, bytes, int, float, complex, type(None), list, tuple, dict, set, frozenset),
)


def name_in_module(obj: object, module: str) -> str | None:
    """Return the name of an object among the attributes of a loaded module, or None."""
    found = sys.modules.get(module)
    contents = vars(found) if isinstance(found, ModuleType) else {}
    return next((name for name, value in list(contents.items()) if value is obj), None)


def is_platform_module(module: str) -> bool:
    """Return whether a module is part of torch or the standard library."""
    return root_of(module) in _PLATFORM


class ObjectGraph:
    """The objects that are saved together.

    Args:
        attach: Stores bytes in a separate record and returns its name.
        named: Reduces an object to its own name; raises if that does not lead to it.
        attribute: Returns the reduction to a module's attribute; None if only the pickle sets it.
    """

    def __init__(
        self,
        attach: Callable[[bytes], str],
        named: Callable[[Any], Any],
        attribute: Callable[[ModuleType, str], Any],
    ) -> None:
        self.attach = attach
        self._named = named
        self._attribute = attribute
        self._module_attributes: dict[int, list[tuple[object, ModuleType, str]]] | None = None
        self._ordering = Ordering()
        self.sort = self._ordering.sort
        self._roots: list[object] = []
        self._reached: set[int] = set()
        self._defining: set[str] = set()

    def add_root(self, root: object) -> None:
        """Add a saved object, with everything that it refers to."""
        self._roots.append(root)
        self._ordering.add_root(root)

    def is_kept_alive(self, obj: Any) -> bool:
        """Return whether something other than a weak reference keeps an object after loading."""
        # An imported module stays in `sys.modules`.
        if isinstance(obj, ModuleType):
            return True
        is_named = isinstance(obj, (type, FunctionType, BuiltinFunctionType))
        if is_named and is_found_by_name(obj, obj.__qualname__):
            return True
        self._walk()
        return id(obj) in self._reached

    def reduce_to_attribute(self, obj: object) -> Any:
        """Return the reduction of an object to an attribute of a module, or None.

        Only modules that the package needs anyway are searched: those that define classes and
        functions of the graph, torch's, and the standard library's. Other modules belong to the
        exporting program and must not become dependencies.
        """
        if self._module_attributes is None:
            self._module_attributes = _module_attributes()
        same_id = self._module_attributes.get(id(obj), ())
        found = [(module, name) for value, module, name in same_id if value is obj]
        if found:
            self._walk()
        needed = [
            (module, name)
            for module, name in found
            if module.__name__ in self._defining or is_platform_module(module.__name__)
        ]
        needed.sort(key=lambda each: self._preference(obj, each[0].__name__))
        reductions = (self._attribute(module, name) for module, name in needed)
        return next((each for each in reductions if each is not None), None)

    def _preference(self, obj: object, module: str) -> tuple[bool, bool, int, str]:
        """Return a sort key that does not depend on which modules were imported, and when."""
        is_defining = module == type(obj).__module__
        return not is_defining, module not in self._defining, module.count("."), module

    def reduce_to_name(self, obj: object) -> Any:
        """Return the reduction of an object to its own name, or None."""
        try:
            return self._named(obj)
        except ModpackError:
            return None

    def _walk(self) -> None:
        while self._roots:
            add_reachable(self._roots.pop(), self._reached, self._defining)


def _module_attributes() -> dict[int, list[tuple[object, ModuleType, str]]]:
    """Return the attributes of all modules by the ids of their values, in import order."""
    found: dict[int, list[tuple[object, ModuleType, str]]] = {}
    for path, module in list(sys.modules.items()):
        is_itself = issubclass(type(module), ModuleType) and vars(module).get("__name__") == path
        for name, value in list(vars(module).items()) if is_itself else ():
            if not issubclass(type(value), _NOT_INDEXED):
                found.setdefault(id(value), []).append((value, module, name))
    return found


class Ordering:
    """Sorts the members of sets for one pickle.

    Strings and bytes are compared directly, other members by a pickle of each one alone. Objects
    that are compared by identity are ordered by when they are reached from the saved objects, on
    a path that does not lead through a set.
    """

    def __init__(self) -> None:
        self._roots: list[object] = []
        self._positions: dict[int, tuple[object, int]] = {}

    def add_root(self, root: object) -> None:
        """Add a saved object, with everything that it refers to."""
        self._roots.append(root)

    def sort(self, members: Collection[Any]) -> list[Any] | None:
        """Return a set's members in an order for every process; None if its own order is one."""
        kinds = set(map(type, members))
        if len(members) < 2 or kinds <= _SAME_HASHES:
            return None
        return sorted(members, key=None if kinds in ({str}, {bytes}) else self.key)

    def key(self, member: object) -> bytes:
        """Return the sort key of a member."""
        buffer = io.BytesIO()
        try:
            _MemberPickler(buffer, self).dump(member)
        except Exception:  # an object's own methods may raise anything; saving it reports that
            return f"{type(member).__module__}.{type(member).__qualname__}".encode()
        return buffer.getvalue()

    def position(self, obj: object) -> int:
        """Return when a walk from the saved objects reaches an object; -1 if only through sets."""
        while self._roots:
            for each in iter_objects(self._roots.pop(0), closed=_SETS):
                # The object is stored with its position, so that no later object gets the same id.
                self._positions.setdefault(id(each), (each, len(self._positions)))
        known = self._positions.get(id(obj))
        return -1 if known is None else known[1]


class _MemberPickler(pickle.Pickler):
    """Writes a description of a set member, to compare it with others."""

    def __init__(self, buffer: io.BytesIO, order: Ordering) -> None:
        super().__init__(buffer, _PROTOCOL)
        self._order = order

    def persistent_id(self, obj: Any) -> Any:
        """Return a replacement for an object in the description; None to describe its parts."""
        kind = type(obj)
        if issubclass(kind, (type, FunctionType, BuiltinFunctionType)):
            line = getattr(getattr(obj, "__code__", None), "co_firstlineno", 0)
            return obj.__module__, obj.__qualname__, line, self._order.position(obj)
        if issubclass(kind, ModuleType):
            return (obj.__name__,)
        # A set in a set has no order of its own, either.
        if issubclass(kind, _SETS):
            named = f"{kind.__module__}.{kind.__qualname__}"
            return named, sorted(map(self._order.key, obj)), getattr(obj, "__dict__", None)
        own: Any = kind.__hash__
        is_tensor = issubclass(kind, torch.Tensor)
        if own is not None and own is not object.__hash__ and not is_tensor:
            return None  # equal objects have equal descriptions
        position = self._order.position(obj) if is_made_by_python(kind) else -1
        if position >= 0:
            return (position,)
        if not is_tensor:
            return None
        values = obj.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest = hashlib.sha256(bytes(values.tolist())).digest()
        return str(obj.dtype), list(obj.shape), digest
