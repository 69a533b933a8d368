"""How a pickle names classes, functions and modules, and what goes along with them."""

from __future__ import annotations

import builtins
import copyreg
import sys
from operator import attrgetter
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from modpack.errors import ModpackError, ObjMismatchError, ObjNotFoundError
from modpack.pickling.classes import is_dynamic, parts_of_class
from modpack.pickling.context import PickleContext, Reference
from modpack.pickling.definitions import is_of_script
from modpack.pickling.functions import (
    SCRIPTS,
    GlobalNames,
    attribute_of,
    make_cell,
    make_method,
    parts_of,
)
from modpack.pickling.functiontext import NoSourceError, parsable_text
from modpack.pickling.heldnames import name_in_module
from modpack.pickling.remade import fill_cell
from modpack.pickling.rows import RefusedError
from modpack.pickling.scriptnames import ModuleNamed, ScriptNames
from modpack.pickling.surroundings import is_of_platform, is_where_it_says

__all__ = ["Naming"]


_NAMELESS = frozenset(map(id, (type(None), type(NotImplemented), type(...))))
"""Types that pickle writes in a way of its own; by identity, for a class may define __hash__."""


class Naming:
    """Reduces classes, functions, methods, cells and modules, for one pickle.

    Args:
        context: tells how things are named.

    Attributes:
        loose_sources: the sources of functions that bring no module along.
    """

    def __init__(self, context: PickleContext) -> None:
        self.loose_sources: list[str] = []
        self._context = context
        self._scripts = ScriptNames(context)
        self._namespaces: dict[int, GlobalNames] = {}
        self._seen: dict[Reference, None] = {}
        self._filled_cells: set[int] = set()

    @property
    def references(self) -> list[Reference]:
        """Everything that was named so far, in order of first use."""
        return list(self._seen)

    @property
    def globals_along(self) -> list[tuple[str, object]]:
        """The values of scripts that come along, each with its name."""
        return self._scripts.along

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
            other = self._other_name(obj)
            if other is None or other == name:
                raise
            reference = self._refer(obj, other)
        again = self._scripts.again(reference)
        if again is not None and again.reduction is not NotImplemented:
            return again.reduction
        if reference.name == name and is_where_it_says(obj, name):
            return NotImplemented
        # An importer of the user's own knows it, but sys.modules, where pickle looks, does not.
        return attrgetter(reference.name), (ModuleNamed(reference.module),)

    def _other_name(self, obj: Any) -> str | None:
        """A name under which its module has it; but functions of the user's carry their state."""
        module = str(obj.__module__)
        if isinstance(obj, FunctionType) and not is_of_platform(module):
            return None
        return name_in_module(obj, module)

    def _defined(self, obj: Any, name: str) -> Any:
        """The reduction of what a script defines; None for anything else."""
        named = self._scripts.definition(obj, name)
        if named is None:
            return None
        self._seen[named.reference] = None
        return named.reduction

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
        home = self._context.home_of(obj)
        shared = None
        if home is None:
            shared = self._namespaces.setdefault(id(obj.__globals__), GlobalNames())
        self._filled_cells.update(map(id, obj.__closure__ or ()))
        try:
            if home is None:
                self.loose_sources.append(parsable_text(obj))
            return parts_of(obj, self._script_home(obj, home) or home, shared)
        except NoSourceError as no_source:
            raise ObjNotFoundError(
                f"{why}; and it cannot be saved by its source: {no_source}. Remedy: define it "
                "with def at the top level of a module"
            ) from no_source

    def _script_home(self, obj: FunctionType, home: ModuleType | None) -> object:
        """The module of definitions that a function finds its globals in; None for any other."""
        found = self._scripts.home(obj)
        if found is None and home is not None and is_of_script(vars(home)):
            found = self._scripts.home_again(home, self._context.module_name(home))
        return found

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
        self._seen[Reference(name, "", obj.__name__)] = None
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

    def _refer(self, obj: object, name: str) -> Reference:
        reference = self._context.resolve(obj, name)
        if (reference.live_module, name) in copyreg._extension_registry:  # type: ignore[attr-defined]
            raise ModpackError(
                f"{reference.live_module}.{name} has a copyreg extension code, which means "
                "nothing in another process. Remedy: copyreg.remove_extension"
            )
        self._seen[reference] = None
        return reference
