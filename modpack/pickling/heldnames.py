"""Objects that modules hold under a name, found by identity."""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

__all__ = ["HeldNames", "name_in_module"]

_Index = dict[int, list[tuple[object, ModuleType, str]]]
"""By the object's id: the object, a module, and the name there."""

_FOUND_OTHERWISE = (
    *(ModuleType, FunctionType, BuiltinFunctionType, type),
    *(str, bytes, int, float, complex, type(None), list, tuple, dict, set, frozenset),
)


def name_in_module(obj: object, module: str) -> str | None:
    """The name under which a loaded module holds an object; None if it does not."""
    found = sys.modules.get(module)
    contents = vars(found) if isinstance(found, ModuleType) else {}
    return next((name for name, value in list(contents.items()) if value is obj), None)


class HeldNames:
    """Which loaded modules hold an object under a name.

    All modules are looked through once, when the first such object is met.

    Args:
        scripts: names of modules that cannot be imported elsewhere.
    """

    def __init__(self, scripts: tuple[str, ...]) -> None:
        self._scripts = scripts
        self._index: _Index | None = None

    def find(self, obj: object) -> list[tuple[ModuleType, str]]:
        """The modules that hold the very object, in the order of their import, and the names."""
        if self._index is None:
            self._index = self._look_through()
        found = self._index.get(id(obj), ())
        return [(module, name) for value, module, name in found if value is obj]

    def _look_through(self) -> _Index:
        index: _Index = {}
        for path, module in list(sys.modules.items()):
            if path in self._scripts or not self._is_itself(path, module):
                continue
            for name, value in list(vars(module).items()):
                if not issubclass(type(value), _FOUND_OTHERWISE):
                    index.setdefault(id(value), []).append((value, module, name))
        return index

    def _is_itself(self, path: str, module: Any) -> bool:
        is_module = issubclass(type(module), ModuleType)
        return is_module and vars(module).get("__name__") == path
