"""An order for the members of a set that is the same in every process.

A set has the order of its members' hashes, and those of texts and of most objects differ from
process to process. A package must not: what is written is ordered by what the members are.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Collection
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from modpack.pickling.paths import objects_in

__all__ = ["Ordering"]

_SETS = (set, frozenset)
_COUNTED = frozenset({int, bool, float})
"""Their hashes are the same everywhere."""

_PROTOCOL = 4


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
        """The members in their order; None if they have the same one everywhere as they are."""
        kinds = set(map(type, members))
        if len(members) < 2 or kinds <= _COUNTED:
            return None
        if kinds in ({str}, {bytes}):
            return sorted(members)
        return sorted(members, key=self.key)

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
        if _is_value(kind):
            return None  # equal ones are alike
        place = self._order.place(obj) if kind.__flags__ & _HEAP else -1
        if place >= 0:
            return (place,)
        return _tensor(obj) if isinstance(obj, torch.Tensor) else None


_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by Python code, as lists and dicts are not


def _is_value(kind: type) -> bool:
    """Whether objects are what they hold, wherever they are."""
    own: Any = kind.__hash__
    return own is not None and own is not object.__hash__ and not issubclass(kind, torch.Tensor)


def _tensor(tensor: torch.Tensor) -> tuple[object, ...]:
    """What tells a tensor that only a set holds from others."""
    values = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return str(tensor.dtype), list(tensor.shape), hashlib.sha256(bytes(values.tolist())).digest()
