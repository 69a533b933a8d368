"""How a pickle refers to what a script defines: through the module that holds its definitions.

A reference is a plain one wherever it can be. Only the first one to need values that the script
computed brings them along, see :mod:`modpack.pickling.base`.

How a pickle names classes, functions and modules, and what goes along with them.

Renaming the modules that a finished pickle names.

An object that was loaded from a package lives under a private module path. The C pickler
writes the path that the object carries; in the new package it must be the real one.
"""

from __future__ import annotations

import builtins
import copyreg
import pickle
import pickletools
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from modpack.errors import ModpackError, ObjMismatchError, ObjNotFoundError
from modpack.pickling.base import (
    Filling,
    PickleContext,
    Reference,
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
from modpack.pickling.graph_context import is_of_platform, is_where_it_says
from modpack.pickling.object_paths import name_in_module
from modpack.pickling.remade import fill_cell


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


_TEXT = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}


def rename_modules(data: bytes, renames: Mapping[str, str]) -> bytes:
    r"""Give modules in a pickle other names.

    Replaces them where a global is named, and, since protocol 4 shares strings between
    names and values, every string that equals one. Frames, which are optional (PEP 3154),
    are left out because their lengths change.

    Args:
        data: a pickle as ``pickle.Pickler`` writes it, of protocol 2 or later.
        renames: new module path by old module path.

    >>> import pickle, collections
    >>> old = pickle.dumps(collections.OrderedDict, protocol=4)
    >>> pickletools.dis(rename_modules(old, {"collections": "elsewhere"}))
        0: \x80 PROTO      4
        2: \x8c SHORT_BINUNICODE 'elsewhere'
       13: \x94 MEMOIZE    (as 0)
       14: \x8c SHORT_BINUNICODE 'OrderedDict'
       27: \x94 MEMOIZE    (as 1)
       28: \x93 STACK_GLOBAL
       29: \x94 MEMOIZE    (as 2)
       30: .    STOP
    highest protocol among opcodes = 4
    """
    return b"".join(_pieces(data, renames))


def _pieces(data: bytes, renames: Mapping[str, str]) -> Iterator[bytes]:
    operations = [
        (op.name, arg if isinstance(arg, str) else "", at or 0)
        for op, arg, at in pickletools.genops(data)
    ]
    ends = [at for _, _, at in operations[1:]] + [len(data)]
    for (name, argument, start), end in zip(operations, ends, strict=True):
        if name == "FRAME":
            continue
        if name == "GLOBAL" and argument.partition(" ")[0] in renames:
            module, _, attribute = argument.partition(" ")
            yield pickle.GLOBAL + f"{renames[module]}\n{attribute}\n".encode()
        elif name in _TEXT and argument in renames:
            yield _text(renames[argument])
        else:
            yield data[start:end]


def _text(value: str) -> bytes:
    encoded = value.encode()
    if len(encoded) < 256:
        return pickle.SHORT_BINUNICODE + bytes([len(encoded)]) + encoded
    return pickle.BINUNICODE + len(encoded).to_bytes(4, "little") + encoded
