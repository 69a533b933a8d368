"""How a pickle names classes, functions, methods, cells and modules.

What a script defines is referred to through the module that holds its definitions. A reference is
a plain one wherever it can be: only the first one to need values that the script computed brings
them with it, see :mod:`modpack.pickling.base`.
"""

from __future__ import annotations

import builtins
import copyreg
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from modpack.errors import ModpackError, ObjMismatchError, ObjNotFoundError
from modpack.pickling.base import (
    Filling,
    GlobalReference,
    PickleContext,
    RefusedError,
    ScriptSource,
    defined,
    fillings_of,
    is_of_script,
    script_module,
    set_in_script,
)
from modpack.pickling.classes import is_dynamic, parts_of_class
from modpack.pickling.functions import (
    SCRIPTS,
    GlobalNames,
    NoSourceError,
    attribute_of,
    make_cell,
    make_method,
    named_globals,
    parsable_text,
    parts_of,
)
from modpack.pickling.graph_context import is_of_platform, is_where_it_says, name_in_module
from modpack.pickling.pickle_edits import ReducedObject
from modpack.pickling.remade import fill_cell

_NAMELESS = frozenset(map(id, (type(None), type(NotImplemented), type(...))))
"""Types that pickle writes in a way of its own; by identity, for a class may define __hash__."""


@dataclass(frozen=True)
class ModuleNamed:
    """Stands for a module in a pickle that is to be imported by its path."""

    name: str


class Naming:
    """Reduces classes, functions, methods, cells and modules, for one pickle.

    Args:
        context: tells how things are named, and knows the scripts.

    Attributes:
        references: everything that was named so far, in order of first use.
        loose_sources: the sources of functions that bring no module with them.
        globals_along: the values of scripts that are saved too, each with its name.
    """

    def __init__(self, context: PickleContext) -> None:
        self.references: dict[GlobalReference, None] = {}
        self.loose_sources: list[str] = []
        self.globals_along: list[tuple[str, object]] = []
        self._context = context
        self._set: set[tuple[str, tuple[str, ...]]] = set()
        self._namespaces: dict[int, GlobalNames] = {}
        self._filled_cells: set[int] = set()

    def cell(self, cell: CellType) -> Any:
        """A function fills its own cells, which may hold the function itself."""
        try:
            contents = cell.cell_contents
        except ValueError:
            return make_cell, ()
        if id(cell) in self._filled_cells:
            return make_cell, ()
        return make_cell, (), (contents,), None, None, fill_cell

    def of_class(self, obj: Any) -> Any:
        """By reference if it can be imported, else by its parts."""
        if obj.__module__ == "builtins" and not hasattr(builtins, obj.__name__):
            name = name_in_module(obj, "types")
            if name is not None:  # FunctionType and the like say that they are builtins
                return attrgetter(name), (ModuleNamed("types"),)
        try:
            return self._global(obj)
        except (ObjNotFoundError, ObjMismatchError):
            if not is_dynamic(obj):
                raise
        module = sys.modules.get(obj.__module__) if obj.__module__ not in SCRIPTS else None
        return parts_of_class(obj, module)

    def _global(self, obj: Any) -> Any:
        if id(obj) in _NAMELESS:
            return NotImplemented
        name = getattr(obj, "__qualname__", obj.__name__)
        named = self._defined(obj, name)
        if named is not None:
            return named
        try:
            reference = self._refer(obj, name)
        except (ObjNotFoundError, ObjMismatchError):
            module = str(obj.__module__)
            if isinstance(obj, FunctionType) and not is_of_platform(module):
                raise  # functions of the user's carry their state
            other = name_in_module(obj, module)
            if other is None or other == name:
                raise
            reference = self._refer(obj, other)
        live = sys.modules.get(reference.live_module)
        if live is not None and is_of_script(vars(live)):  # it came out of a package
            again = self._with_values(reference, fillings_of(vars(live)))
            if again is not NotImplemented:
                return again
        if reference.name == name and is_where_it_says(obj, name):
            return NotImplemented
        # An importer of the user's own knows it, but sys.modules, where pickle looks, does not.
        return attrgetter(reference.name), (ModuleNamed(reference.module),)

    def _defined(self, obj: Any, name: str) -> Any:
        """The reduction of what a script defines; None for anything else.

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
        reference = GlobalReference(source.module, name, str(module))
        self.references[reference] = None
        return self._with_values(reference, fillings)

    def _with_values(self, reference: GlobalReference, fillings: Iterable[Filling]) -> Any:
        """A reference that sets values first; NotImplemented, a plain one, if there are none."""
        new = self._new(reference.module, fillings)
        if not new:
            return NotImplemented
        return defined, (ModuleNamed(reference.module), reference.name, *new)

    def _new(self, module: str, fillings: Iterable[Filling]) -> list[ReducedObject]:
        """What sets those values in a module of definitions that this pickle does not set yet."""
        new = []
        for filling in fillings:
            if (module, filling.path) not in self._set:
                self._set.add((module, filling.path))
                self.globals_along.append((f"global {'.'.join(filling.path)}", filling.value))
                parts = (ModuleNamed(module), filling.path, filling.value)
                new.append(ReducedObject((set_in_script, parts)))
        return new

    def of_function(self, obj: FunctionType) -> Any:
        """By reference if it can be imported, else by its source."""
        if obj.__module__ in SCRIPTS:
            named = self._defined(obj, obj.__qualname__)
            if named is not None:
                return named
            return self._by_source(obj, f"{obj!r} is defined in the script that runs")
        try:
            return self._global(obj)
        except (ObjNotFoundError, ObjMismatchError) as not_found:
            if self._context.is_importable(obj):  # the mismatch is about its library's version
                raise
            return self._by_source(obj, str(not_found))

    def method(self, obj: MethodType) -> Any:
        """As an attribute of its object where it is one."""
        name = attribute_of(obj)
        if name is None:
            return make_method, (obj.__func__, obj.__self__)
        return getattr, (obj.__self__, name)

    def _by_source(self, obj: FunctionType, why: str) -> Any:
        module = self._context.home_of(obj)
        self._filled_cells.update(map(id, obj.__closure__ or ()))
        try:
            if module is None:
                self.loose_sources.append(parsable_text(obj))
            return parts_of(obj, self._home(obj, module))
        except NoSourceError as no_source:
            raise ObjNotFoundError(
                f"{why}; and it cannot be saved by its source: {no_source}. Remedy: define it "
                "with def at the top level of a module"
            ) from no_source

    def _home(self, obj: FunctionType, module: ModuleType | None) -> object:
        """What a function finds its globals in: a module, or a namespace of its own."""
        source = self._source_of(obj)
        if source is not None:  # of a script, but not itself one of its definitions
            path, fillings = source.module, source.take_all(list(named_globals(obj)))
        elif module is not None and is_of_script(vars(module)):  # it came out of a package
            path, fillings = self._context.module_name(module), fillings_of(vars(module))
        elif module is None:
            return self._namespaces.setdefault(id(obj.__globals__), GlobalNames())
        else:
            return module
        return ReducedObject((script_module, (ModuleNamed(path), *self._new(path, fillings))))

    def _source_of(self, function: FunctionType) -> ScriptSource | None:
        for name in dict.fromkeys((str(function.__globals__.get("__name__")), *SCRIPTS)):
            module = sys.modules.get(name)
            if module is not None and vars(module) is function.__globals__:
                return self._context.script(name) if named_globals(function) else None
        return None

    def module(self, obj: ModuleType) -> tuple[str, str]:
        """The persistent id of a module.

        Raises:
            RefusedError: it cannot be imported.
        """
        if obj.__spec__ is None and sys.modules.get(obj.__name__) is not obj:
            raise RefusedError(
                f"the module {obj.__name__!r} was made on the spot and cannot be imported. "
                "Remedy: put its contents into a file, or save them in a dictionary"
            )
        name = self._context.module_name(obj)
        self.references[GlobalReference(name, "", obj.__name__)] = None
        return ("module", name)

    def reduced(self, obj: Any, value: Any) -> Any:
        """An object's own reduction, with the name in it resolved if it is one."""
        if isinstance(value, str):  # a constant of its module, such as torch.float32
            named = self._defined(obj, value)
            if named not in (None, NotImplemented):
                return named
            if named is None:
                self._refer(obj, value)
        return value

    def _refer(self, obj: object, name: str) -> GlobalReference:
        reference = self._context.resolve(obj, name)
        if (reference.live_module, name) in copyreg._extension_registry:  # type: ignore[attr-defined]
            raise ModpackError(
                f"{reference.live_module}.{name} has a copyreg extension code, which means "
                "nothing in another process. Remedy: copyreg.remove_extension"
            )
        self.references[reference] = None
        return reference
