"""How a pickle refers to what a script defines: through the module that holds its definitions.

A reference is a plain one wherever it can be. Only the first one to need values that the script
computed brings them along, see :mod:`modpack.pickling.definitions`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from modpack.pickling.context import PickleContext, Reference
from modpack.pickling.definitions import (
    Filling,
    ScriptSource,
    defined,
    fillings_of,
    is_of_script,
    script_module,
    set_in_script,
)
from modpack.pickling.functions import SCRIPTS, named_globals

__all__ = ["ModuleNamed", "Named", "ScriptNames"]


@dataclass(frozen=True)
class ModuleNamed:
    """Stands for a module in a pickle that is to be imported by its path."""

    name: str


@dataclass(frozen=True)
class Named:
    """How to write a reference.

    Attributes:
        reference: what is referred to.
        reduction: what pickle takes: NotImplemented for a plain reference.
    """

    reference: Reference
    reduction: Any


@dataclass(frozen=True, eq=False)
class FilledName:
    """Stands for setting a value in a module of definitions.

    Attributes:
        module: the module's path.
        filling: what is set.
    """

    module: str
    filling: Filling

    def __reduce__(self) -> tuple[Any, ...]:
        module = ModuleNamed(self.module)
        return set_in_script, (module, self.filling.path, self.filling.value)


@dataclass(frozen=True, eq=False)
class Home:
    """Stands for a module of definitions as the home of functions that are saved by source.

    Attributes:
        module: its path.
        filled: what is set in it before.
    """

    module: str
    filled: tuple[FilledName, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return script_module, (ModuleNamed(self.module), *self.filled)


class ScriptNames:
    """Names what scripts define, for one pickle.

    Args:
        context: knows the scripts.

    Attributes:
        along: the values that come along, each with its name.
    """

    def __init__(self, context: PickleContext) -> None:
        self.along: list[tuple[str, object]] = []
        self._context = context
        self._set: set[tuple[str, tuple[str, ...]]] = set()

    def definition(self, obj: Any, name: str) -> Named | None:
        """How to refer to something that a script defines; None for anything else.

        Args:
            obj: a class, a function, or another object that is pickled by name.
            name: its name there.

        Raises:
            ObjMismatchError: the script has defined it anew since.
        """
        module = getattr(obj, "__module__", None)
        source = self._context.script(module) if isinstance(module, str) else None
        if source is None:
            return None
        if isinstance(obj, type):
            source.require_current(name, obj)
        fillings = source.take(name) if source.holds(name, obj) else None
        if fillings is None:
            return None
        return self._named(Reference(source.module, name, str(module)), fillings)

    def again(self, reference: Reference) -> Named | None:
        """How to refer to a definition that came out of a package, if its values are due."""
        module = sys.modules.get(reference.live_module)
        if module is None or not is_of_script(vars(module)):
            return None
        return self._named(reference, fillings_of(vars(module)))

    def home(self, function: FunctionType) -> Home | None:
        """The home of a function of a script that is not itself one of its definitions."""
        source = self._source_of(function)
        if source is None:
            return None
        fillings = source.take_all(list(named_globals(function)))
        return Home(source.module, self._new(source.module, fillings))

    def home_again(self, module: ModuleType, path: str) -> Home:
        """The same for a function whose script came out of a package."""
        return Home(path, self._new(path, fillings_of(vars(module))))

    def _source_of(self, function: FunctionType) -> ScriptSource | None:
        for name in dict.fromkeys((str(function.__globals__.get("__name__")), *SCRIPTS)):
            module = sys.modules.get(name)
            if module is not None and vars(module) is function.__globals__:
                return self._context.script(name) if named_globals(function) else None
        return None

    def _named(self, reference: Reference, fillings: Iterable[Filling]) -> Named:
        new = self._new(reference.module, fillings)
        if not new:
            return Named(reference, NotImplemented)
        return Named(reference, (defined, (ModuleNamed(reference.module), reference.name, *new)))

    def _new(self, module: str, fillings: Iterable[Filling]) -> tuple[FilledName, ...]:
        """Those that this pickle does not set yet."""
        new = []
        for filling in fillings:
            if (module, filling.path) not in self._set:
                self._set.add((module, filling.path))
                self.along.append((f"global {'.'.join(filling.path)}", filling.value))
                new.append(FilledName(module, filling))
        return tuple(new)
