"""The shared layer: values and functions that the layers above it use.

Its modules import only each other, modpack's errors and diagnostics, and the standard library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType


def define_lazily(module: str, find: Callable[[str], object], names: frozenset[str]) -> None:
    """Find some attributes of a module on first use.

    A module-level ``__getattr__`` is called last: an attribute that a library sets on ``object``
    would be found first. The module's class therefore looks up the names itself.

    Args:
        module: The module that runs.
        find: Returns the value of a name; the module keeps it.
        names: The names.
    """

    class LazyModule(ModuleType):
        def __getattribute__(self, name: str) -> object:
            if name not in names:
                return super().__getattribute__(name)
            own = super().__getattribute__("__dict__")
            if name not in own:
                # An import of a submodule sets the name as well.
                value = find(name)
                own[name] = value
            return own[name]

    sys.modules[module].__class__ = LazyModule
