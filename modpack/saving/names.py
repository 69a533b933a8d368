"""References in pickles to classes, functions, methods, cells, and modules.

A script's definitions are referenced through the module that packages them. References are plain
wherever possible: only the first one that needs values computed by the script carries them, see
:mod:`modpack.saving.base`.
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
from modpack.pickling.functions import SCRIPTS, GlobalNames, make_cell, make_method, named_globals
from modpack.pickling.remade import fill_cell
from modpack.pickling.scripts import (
    FILLED,
    defined,
    has_script_definitions,
    script_module,
    set_in_script,
)
from modpack.saving.base import (
    Filling,
    GlobalReference,
    PickleContext,
    RefusedError,
    ScriptSource,
    collect_fillings,
)
from modpack.saving.classes import is_dynamic, reduce_class
from modpack.saving.function_source import (
    NoSourceError,
    globals_module,
    is_found_by_name,
    method_name,
    parsable_text,
    reduce_function,
)
from modpack.saving.graph_context import is_platform_module, name_in_module
from modpack.saving.pickle_edits import ReducedObject

_NAMELESS = frozenset(map(id, (type(None), type(NotImplemented), type(...))))
"""Ids of types that pickle writes specially. Ids, because a class may define ``__hash__``."""


@dataclass(frozen=True)
class ModuleNamed:
    """A placeholder in a pickle for a module that the loader imports by its path."""

    name: str


class NameReducer:
    """Reduces classes, functions, methods, cells, and modules for one pickle.

    Args:
        context: Resolves names and finds scripts.

    Attributes:
        references: Everything that was named so far, in order of first use.
        has_modules: Whether any module was named as a value.
        loose_sources: The sources of functions that are saved without a module.
        script_values: The packaged values of scripts, each with its name.
    """

    def __init__(self, context: PickleContext) -> None:
        self.references: dict[GlobalReference, None] = {}
        self.has_modules = False
        self.loose_sources: list[str] = []
        self.script_values: list[tuple[str, object]] = []
        self._context = context
        self._set: set[tuple[str, tuple[str, ...]]] = set()
        self._namespaces: dict[int, GlobalNames] = {}
        self._filled_cells: set[int] = set()

    def reduce_cell(self, cell: CellType) -> Any:
        """Reduce a closure cell; functions fill their own cells, which may contain themselves."""
        try:
            contents = cell.cell_contents
        except ValueError:
            return make_cell, ()
        if id(cell) in self._filled_cells:
            return make_cell, ()
        return make_cell, (), (contents,), None, None, fill_cell

    def reduce_class(self, obj: Any) -> Any:
        """Reduce a class to a reference if it can be imported, else to its parts."""
        if obj.__module__ == "builtins" and not hasattr(builtins, obj.__name__):
            name = name_in_module(obj, "types")
            if name is not None:  # FunctionType and others claim to be builtins
                return attrgetter(name), (ModuleNamed("types"),)
        try:
            return self._reduce_global(obj)
        except (ObjNotFoundError, ObjMismatchError):
            if not is_dynamic(obj):
                raise
        module = sys.modules.get(obj.__module__) if obj.__module__ not in SCRIPTS else None
        return reduce_class(obj, module)

    def _reduce_global(self, obj: Any) -> Any:
        if id(obj) in _NAMELESS:
            return NotImplemented
        name = getattr(obj, "__qualname__", obj.__name__)
        named = self._reduce_definition(obj, name)
        if named is not None:
            return named
        try:
            reference = self._refer(obj, name)
        except (ObjNotFoundError, ObjMismatchError):
            module = str(obj.__module__)
            if isinstance(obj, FunctionType) and not is_platform_module(module):
                raise  # functions may carry state
            other = name_in_module(obj, module)
            if other is None or other == name:
                raise
            reference = self._refer(obj, other)
        live = sys.modules.get(reference.live_module)
        loaded = collect_fillings(vars(live)) if live is not None else ()  # with their package
        new = self._new(reference.module, loaded)
        for base in type.mro(obj)[:-1] if isinstance(obj, type) else ():
            is_platform = is_platform_module(base.__module__)
            if added := () if is_platform else self._context.script_additions(base):
                new += self._new(self._refer(base, base.__qualname__).module, added)
        if new:
            return defined, (ModuleNamed(reference.module), reference.name, *new)
        if reference.name == name and is_found_by_name(obj, name):
            return NotImplemented
        # A custom importer knows the object, but sys.modules, which pickle searches, does not.
        return attrgetter(reference.name), (ModuleNamed(reference.module),)

    def _reduce_definition(self, obj: Any, name: str) -> Any:
        """Return the reduction of an object that a script defines, else None.

        Raises:
            ObjMismatchError: If the script has redefined the class since.
        """
        module = getattr(obj, "__module__", None)
        source = self._context.script(module) if isinstance(module, str) else None
        if source is None:
            return None
        if isinstance(obj, type):
            source.require_current(name, obj)
        if not source.holds(name, obj):
            return None
        reduced = self._take(source, name, str(module))
        # Without values to set first, a plain reference suffices.
        return NotImplemented if reduced is not None and len(reduced[1]) == 2 else reduced

    def _take(self, source: ScriptSource, name: str, live_module: str) -> Any:
        """Return the reduction to a definition of a script, or None if it cannot be included."""
        fillings = source.take(name)
        if fillings is None:
            return None
        self.references[GlobalReference(source.module, name, live_module)] = None
        new = self._new(source.module, fillings)
        return defined, (ModuleNamed(source.module), name, *new)

    def reduce_attribute(self, module: ModuleType, name: str) -> Any:
        """Return the reduction to an attribute of a module.

        Returns:
            None for an attribute that the packaged module lacks until the pickle has set it.
        """
        source = self._context.script(module.__name__)
        if source is not None:
            return self._take(source, name, module.__name__)
        is_set = (name,) in vars(module).get(FILLED, ())
        return None if is_set or module.__name__ in SCRIPTS else (getattr, (module, name))

    def _new(self, module: str, fillings: Iterable[Filling]) -> list[ReducedObject]:
        """Return the calls that set those values which this pickle does not set yet."""
        new = []
        for filling in fillings:
            if (module, filling.path) not in self._set:
                self._set.add((module, filling.path))
                self.script_values.append((f"global {'.'.join(filling.path)}", filling.value))
                parts = (ModuleNamed(module), filling.path, filling.value)
                new.append(ReducedObject((set_in_script, parts)))
        return new

    def reduce_function(self, obj: FunctionType) -> Any:
        """Reduce a function to a reference if it can be imported, else to its source."""
        if obj.__module__ in SCRIPTS:
            named = self._reduce_definition(obj, obj.__qualname__)
            if named is not None:
                return named
            return self._reduce_to_source(obj, f"{obj!r} is defined in the script that runs")
        try:
            return self._reduce_global(obj)
        except (ObjNotFoundError, ObjMismatchError) as not_found:
            if self._context.is_importable(obj):  # the mismatch concerns its library's version
                raise
            problem = str(not_found).removesuffix(not_found.hint).rstrip(" .\n")
            return self._reduce_to_source(obj, problem)

    def reduce_method(self, obj: MethodType) -> Any:
        """Reduce a method to an attribute of its object if it is one."""
        name = method_name(obj)
        if name is None:
            return make_method, (obj.__func__, obj.__self__)
        return getattr, (obj.__self__, name)

    def _reduce_to_source(self, obj: FunctionType, problem: str) -> Any:
        module = globals_module(obj)
        # Before the cells are pickled: they may contain the function, which fills them at load.
        self._filled_cells.update(map(id, obj.__closure__ or ()))
        try:
            if module is None:
                self.loose_sources.append(parsable_text(obj))
            return reduce_function(obj, self._globals_of(obj, module))
        except NoSourceError as no_source:
            raise ObjNotFoundError(
                f"{problem}, and it cannot be saved by its source: {no_source}",
                hint="Define it with def at the top level of a module.",
            ) from no_source

    def _globals_of(self, obj: FunctionType, module: ModuleType | None) -> object:
        """Return the reduction of a function's globals: a module, or a separate namespace."""
        source = self._source_of(obj)
        if source is not None:  # part of a script, but not one of its definitions
            path, fillings = source.module, source.take_all(list(named_globals(obj)))
        elif module is not None and has_script_definitions(vars(module)):  # loaded from a package
            path, fillings = self.module_id(module)[1], collect_fillings(vars(module))
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

    def module_id(self, obj: ModuleType) -> tuple[str, str]:
        """Return the persistent id of a module.

        Raises:
            RefusedError: If it cannot be imported.
        """
        if obj.__spec__ is None and sys.modules.get(obj.__name__) is not obj:
            raise RefusedError(
                f"the module {obj.__name__!r} was made at run time and cannot be imported",
                hint="Put its contents into a file, or save them in a dictionary.",
            )
        name = self._context.module_name(obj)
        self.references[GlobalReference(name, "", obj.__name__)] = None
        return self.named_module_id(name)

    def named_module_id(self, name: str) -> tuple[str, str]:
        """Return the persistent id of the module with a path."""
        self.has_modules = True
        return ("module", name)

    def resolve_name(self, obj: Any, value: Any) -> Any:
        """Return an object's own reduction; if it is a name, reference or resolve that."""
        if isinstance(value, str):  # a module constant such as torch.float32
            named = self._reduce_definition(obj, value)
            if named not in (None, NotImplemented):
                return named
            if named is None:
                self._refer(obj, value)
        return value

    def _refer(self, obj: object, name: str) -> GlobalReference:
        reference = self._context.resolve(obj, name)
        if (reference.live_module, name) in copyreg._extension_registry:  # type: ignore[attr-defined]
            raise ModpackError(
                f"{reference.live_module}.{name} has a copyreg extension code, which is valid "
                "only in this process",
                hint="Remove the code with copyreg.remove_extension.",
            )
        self.references[reference] = None
        return reference
