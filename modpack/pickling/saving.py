"""Saving: an object becomes a pickle, storages, and the names that it refers to."""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, Protocol

import torch

from modpack.errors import (
    ArchiveError,
    ModpackError,
    ObjMismatchError,
    ObjNotFoundError,
    PicklingError,
    TargetError,
)
from modpack.pickling.functions import (
    SCRIPTS,
    GlobalNames,
    attribute_of,
    make_cell,
    make_method,
    parts_of,
)
from modpack.pickling.functiontext import NoSourceError, parsable_text
from modpack.pickling.paths import path_to
from modpack.pickling.rename import rename_modules
from modpack.pickling.torchscript import load_script_module, script_bytes

__all__ = ["Observer", "PickleContext", "Pickled", "Reference", "pickle_object"]


@dataclass(frozen=True)
class Reference:
    """A class, function or constant that a pickle names.

    Attributes:
        module: the module path that the pickle names.
        name: the attribute path in that module.
        live_module: the module path under which it lives in this process; differs from
            ``module`` if it was loaded from a package.
    """

    module: str
    name: str
    live_module: str


@dataclass(frozen=True)
class Pickled:
    """The result of pickling an object.

    Attributes:
        data: the pickle.
        references: everything that it names, in order of first use.
        appended: pickles that continue it, of what the observer asked for: loaded by the same
            unpickler, one after the other, they refer to the objects of the first.
        loose_sources: the sources of functions that bring no module along; what they import
            is known from nowhere else.
    """

    data: bytes
    references: tuple[Reference, ...]
    appended: bytes = b""
    loose_sources: tuple[str, ...] = ()


class PickleContext(Protocol):
    """What the saving side provides while an object is pickled."""

    def resolve(self, obj: object, name: str) -> Reference:
        """Tell how a class or function is named; raises if it cannot be found again."""

    def add_storage(self, storage: torch.UntypedStorage) -> str:
        """Store a storage's bytes, once, and return its key."""

    def add_attachment(self, data: bytes) -> str:
        """Store bytes that torch serialised itself, and return the record's name."""

    def next_reduce_id(self) -> int:
        """A number for the next object that packages itself."""

    def module_name(self, module: ModuleType) -> str:
        """The module path by which a live module is imported after loading."""

    def home_of(self, function: FunctionType) -> ModuleType | None:
        """The importable module whose globals a function uses; None for ``__main__``."""

    def is_importable(self, function: FunctionType) -> bool:
        """Whether a function can be named, so that its source need not travel."""

    @property
    def exporter(self) -> object:
        """What ``__reduce_package__`` is called with."""


class Observer(Protocol):
    """Sees what the pickler meets, and may change what is written of it."""

    def reducer(self, kind: type) -> Callable[[Any, Any], Any] | None:
        """For a type: what turns (object, its own reduction) into the one to write, or None.

        The second argument makes the object's own reduction when it is called.
        """

    def stand_in(self, kind: type) -> Callable[[Any], tuple[Any, ...] | None] | None:
        """For a type: what tells of an object how to make another in its place, or None.

        The place is taken by ``function(package, *arguments)`` for ``(function, arguments)``;
        for None the object itself is pickled.
        """

    def packaged(self, obj: object, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """See an object that packages itself (``__reduce_package__``).

        Args:
            obj: the object.
            parts: its own reduction: a function and its arguments.

        Returns:
            The one to write.
        """

    def whereabouts(self, obj: object) -> tuple[str, str] | None:
        """Where an object hangs that could not be pickled, and what can be done about it.

        None to search the saved object.
        """

    def next_payload(self) -> object | None:
        """What else to pickle after the object itself; None when there is nothing more."""


def pickle_object(
    obj: object,
    *,
    context: PickleContext,
    resource: str,
    protocol: int,
    root: str = "obj",
    observer: Observer | None = None,
) -> Pickled:
    """Pickle an object; its storages go to the context.

    Args:
        obj: what to save.
        context: where storages and names go.
        resource: the resource's name, for errors.
        protocol: the pickle protocol (PEP 3154, PEP 574).
        root: what to call ``obj`` in attribute paths of errors.
        observer: sees every object of certain types on its way.

    Raises:
        PicklingError: something in it cannot be pickled; names it by its attribute path.
    """
    pickler = _Pickler(io.BytesIO(), protocol, context, observer)
    try:
        data, appended = pickler.dump_all(obj)
    except RecursionError as failure:
        raise PicklingError(resource, "the object nests too deeply for pickle") from failure
    except (ArchiveError, TargetError, MemoryError):  # no fault of the object's
        raise
    except Exception as failure:  # an object's own methods may raise anything
        raise _failed(resource, failure, *_place(obj, pickler, root)) from failure
    renames = {r.live_module: r.module for r in pickler.references if r.live_module != r.module}
    if renames:
        data = rename_modules(data, renames)
        appended = [rename_modules(piece, renames) for piece in appended]
    sources = tuple(pickler.loose_sources)
    return Pickled(data, tuple(pickler.references), b"".join(appended), sources)


class UnnamedObjectError(PicklingError, ObjNotFoundError):
    """A class or function in a saved object is not found under its name."""


class MisnamedObjectError(PicklingError, ObjMismatchError):
    """The name of a class or function in a saved object leads to another one."""


def _failed(resource: str, failure: Exception, path: str | None, remedy: str) -> PicklingError:
    kind = PicklingError
    if isinstance(failure, ObjMismatchError):
        kind = MisnamedObjectError
    elif isinstance(failure, ObjNotFoundError):
        kind = UnnamedObjectError
    expected = (ModpackError, pickle.PicklingError, TypeError, AttributeError, NotImplementedError)
    if isinstance(failure, expected):
        reason = str(failure) or type(failure).__name__
        return kind(resource, reason if "Remedy: " in reason else reason + remedy, path)
    raised = traceback.extract_tb(failure.__traceback__)[-1]
    reason = f"{type(failure).__name__}: {failure} (raised at {raised.filename}:{raised.lineno})"
    return kind(resource, reason, path)


def _place(obj: object, pickler: _Pickler, root: str) -> tuple[str | None, str]:
    observer = pickler.observer
    known = observer.whereabouts(pickler.current) if observer is not None else None
    if known is not None:
        return known[0], f". Remedy: {known[1]}"
    return path_to(obj, pickler.current, root), ""


_Handler = Callable[[Any], Any]


@dataclass(frozen=True)
class _ModuleNamed:
    """Stands for a module in a pickle that is to be imported by its path."""

    name: str


def _is_where_it_says(obj: Any, name: str) -> bool:
    """Whether pickle will find a class or function by what it says about itself."""
    found: object = sys.modules.get(str(obj.__module__))
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is obj


_NAMELESS = frozenset(map(id, (type(None), type(NotImplemented), type(...))))
"""Types that pickle writes in a way of its own; by identity, for a class may define __hash__."""


class _Pickler(pickle.Pickler):
    """The C pickler, with a look at each type the first time that it is met."""

    def __init__(
        self,
        buffer: io.BytesIO,
        protocol: int,
        context: PickleContext,
        observer: Observer | None,
    ) -> None:
        super().__init__(buffer, protocol, fix_imports=False)
        self._buffer = buffer
        self._protocol = protocol
        self._context = context
        self.observer = observer
        self._namespaces: dict[int, GlobalNames] = {}
        self.loose_sources: list[str] = []
        self._persistent: dict[type, _Handler | None] = {}
        self._reducers: dict[type, _Handler | None] = {}
        self._packaged: dict[int, tuple[object, object]] = {}
        self._seen: dict[Reference, None] = {}
        self.current: object = None

    def dump_all(self, obj: object) -> tuple[bytes, list[bytes]]:
        """Pickle an object, and what the observer appends, with one memo for all."""
        pieces = [self._dump_piece(obj)]
        while self.observer is not None:
            payload = self.observer.next_payload()
            if payload is None:
                break
            pieces.append(self._dump_piece(payload))
        return pieces[0], pieces[1:]

    def _dump_piece(self, obj: object) -> bytes:
        start = self._buffer.tell()
        self.dump(obj)
        return self._buffer.getvalue()[start:]

    @property
    def references(self) -> list[Reference]:
        return list(self._seen)

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        try:
            handler = self._persistent[kind]
        except KeyError:
            handler = self._persistent[kind] = self._persistent_handler(kind)
        return None if handler is None else handler(obj)

    def reducer_override(self, obj: Any) -> Any:
        self.current = obj
        kind = type(obj)
        try:
            handler = self._reducers[kind]
        except KeyError:
            handler = self._reducers[kind] = self._reducing_handler(kind)
        return NotImplemented if handler is None else handler(obj)

    def _persistent_handler(self, kind: type) -> _Handler | None:
        own = self._own_persistent_handler(kind)
        stand_in = self.observer.stand_in(kind) if self.observer is not None else None
        if stand_in is None:
            return own

        def handle(obj: Any) -> Any:
            made = stand_in(obj)
            if made is not None:
                return self._once(obj, lambda: made)
            return None if own is None else own(obj)

        return handle

    def _own_persistent_handler(self, kind: type) -> _Handler | None:
        if issubclass(kind, torch.storage.TypedStorage):
            return self._typed_storage
        if issubclass(kind, torch.UntypedStorage):
            return self._untyped_storage
        if issubclass(kind, torch.jit.ScriptModule):
            return self._script_module
        if callable(getattr(kind, "__reduce_package__", None)) and not issubclass(kind, type):
            return self._reduce_package
        if issubclass(kind, ModuleType):
            return self._module
        if kind is _ModuleNamed:
            return lambda module: ("module", module.name)
        return None

    def _reducing_handler(self, kind: type) -> _Handler | None:
        if issubclass(kind, FunctionType):
            return self._function
        if issubclass(kind, MethodType):
            return self._method
        if issubclass(kind, CellType):
            return lambda cell: (make_cell, ())
        if issubclass(kind, type):
            return self._global
        observed = self.observer.reducer(kind) if self.observer is not None else None
        if observed is not None:
            return lambda obj: observed(obj, lambda: self._plain_reduction(obj))
        if kind in copyreg.dispatch_table:
            return self._registered_reduce
        plain = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
        return None if plain else self._own_reduce

    def _global(self, obj: Any) -> Any:
        if id(obj) in _NAMELESS:
            return NotImplemented
        reference = self._refer(obj, getattr(obj, "__qualname__", obj.__name__))
        if _is_where_it_says(obj, reference.name):
            return NotImplemented
        # An importer of the user's own knows it, but sys.modules, where pickle looks, does not.
        return attrgetter(reference.name), (_ModuleNamed(reference.module),)

    def _function(self, obj: FunctionType) -> Any:
        """By reference if it can be imported, else by its source."""
        if obj.__module__ in SCRIPTS:
            return self._by_source(obj, f"{obj!r} is defined in the script that runs")
        try:
            return self._global(obj)
        except (ObjNotFoundError, ObjMismatchError) as not_found:
            if self._context.is_importable(obj):  # the mismatch is about its library's version
                raise
            return self._by_source(obj, str(not_found))

    def _method(self, obj: MethodType) -> Any:
        name = attribute_of(obj)
        if name is None:
            return make_method, (obj.__func__, obj.__self__)
        return getattr, (obj.__self__, name)

    def _by_source(self, obj: FunctionType, why: str) -> Any:
        home = self._context.home_of(obj)
        shared = None
        if home is None:
            shared = self._namespaces.setdefault(id(obj.__globals__), GlobalNames())
        try:
            if home is None:
                self.loose_sources.append(parsable_text(obj))
            return parts_of(obj, home, shared)
        except NoSourceError as no_source:
            raise ObjNotFoundError(
                f"{why}; and it cannot be saved by its source: {no_source}. Remedy: define it "
                "with def at the top level of a module"
            ) from no_source

    def _plain_reduction(self, obj: Any) -> Any:
        registered = copyreg.dispatch_table.get(type(obj))
        return obj.__reduce_ex__(self._protocol) if registered is None else registered(obj)

    def _module(self, obj: ModuleType) -> tuple[str, str]:
        name = self._context.module_name(obj)
        self._seen[Reference(name, "", obj.__name__)] = None
        return ("module", name)

    def _registered_reduce(self, obj: Any) -> Any:
        return self._reduced(obj, copyreg.dispatch_table[type(obj)](obj))

    def _own_reduce(self, obj: Any) -> Any:
        return self._reduced(obj, obj.__reduce_ex__(self._protocol))

    def _reduced(self, obj: Any, value: Any) -> Any:
        if isinstance(value, str):  # a constant of its module, such as torch.float32
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

    def _typed_storage(self, obj: Any) -> tuple[object, ...]:
        storage_type = getattr(torch, obj._pickle_storage_type())
        return self._storage(obj._untyped_storage, storage_type, obj._size())

    def _untyped_storage(self, obj: torch.UntypedStorage) -> tuple[object, ...]:
        return self._storage(obj, torch.UntypedStorage, obj.nbytes())

    def _storage(
        self, storage: torch.UntypedStorage, storage_type: object, size: int
    ) -> tuple[object, ...]:
        key = self._context.add_storage(storage)
        return ("storage", storage_type, key, torch.serialization.location_tag(storage), size)

    def _script_module(self, obj: Any) -> object:
        def reduce() -> tuple[Any, ...]:
            record = self._context.add_attachment(script_bytes(obj))
            return self._observed(obj, (load_script_module, (record,)))

        return self._once(obj, reduce)

    def _reduce_package(self, obj: Any) -> object:
        def reduce() -> tuple[Any, ...]:
            return self._observed(obj, obj.__reduce_package__(self._context.exporter))

        return self._once(obj, reduce)

    def _observed(self, obj: object, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        return parts if self.observer is None else self.observer.packaged(obj, parts)

    def _once(self, obj: object, reduce: Callable[[], tuple[object, ...]]) -> object:
        if id(obj) not in self._packaged:
            self.current = obj
            number = self._context.next_reduce_id()
            function, arguments = reduce()
            self._packaged[id(obj)] = (obj, ("reduce_package", number, function, arguments))
        return self._packaged[id(obj)][1]
