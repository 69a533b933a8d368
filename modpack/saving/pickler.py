"""The pickler: turns an object into a pickle, storages, and a list of referenced names.

Python's C pickler does the work. For the first object of each type it asks how to reduce such
objects (:mod:`modpack.saving.reducers`) and whether persistent ids replace them. Plain data takes
a faster path, see :class:`FastPathPickler`.
"""

from __future__ import annotations

import copyreg
import io
import operator
import pickle
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    GetSetDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, Final, NamedTuple

import torch

from modpack.errors import ArchiveError, PicklingError, TargetError
from modpack.pickling.rebuild import MODULE
from modpack.pickling.remade import load_script_module, set_state
from modpack.saving.base import (
    GlobalReference,
    Observer,
    Packaged,
    PickleContext,
    PicklingProblem,
    UnsupportedType,
    problems_as_error,
)
from modpack.saving.graph_context import ObjectGraph
from modpack.saving.names import ModuleNamed, NameReducer
from modpack.saving.pickle_edits import ReducedObject, SetWriter, rename_modules
from modpack.saving.reducers import (
    PYBIND11_MODULE,
    ROWS,
    GraphModules,
    is_kind_of_stream,
    is_stateless,
    reduce_by_row,
    reduce_constant,
    reduce_pybind11_function,
    reduce_pybind11_owner,
    reduce_stream,
)
from modpack.saving.tensors import (
    move_state_last,
    ordinary_reduction,
    reduce_tensor,
    storage_parts,
)
from modpack.saving.torch_archives import script_bytes, without_folders


class Placeholder:
    """Takes the place of an object that cannot be saved, so that pickling can continue."""

    def __call__(self) -> None:
        """Do nothing: pickle requires a callable."""


_REDUCED_ALONE: Final = frozenset({OrderedDict, defaultdict, deque})
"""Types whose own reduction cannot fail, and runs no code but Python's."""
_NEWOBJ: Final = getattr(copyreg, "__newobj__")  # noqa: B009 - hidden from type checkers
"""Creates an object from its class alone at load time; pickle has an opcode for it."""
_INSTANCE_METHODS: Final = (b"__getstate__", b"__reduce_ex__")
"""Methods that pickle takes from an object's attributes if it has some with these names. Searching
the pickle for the names takes a twentieth of the time of checking every object."""
_ATTRIBUTE_METHODS: Final = ("__getattr__", "__getattribute__")
_CONTAINERS_AND_VALUES: Final = (dict, list, tuple, str, bytes, int, float, bool, type(None))
"""Types for which pickle calls no hook except ``persistent_id``."""
_PROTOCOLS: Final = frozenset({2, 3})
"""Protocols in which pickle names the type of a set. Later ones write sets without calling a hook,
in an order that differs between processes."""


def _has_code_for_attributes(base: type) -> bool:
    return any(name in vars(base) for name in _ATTRIBUTE_METHODS)


def _has_own_reduction(kind: Any) -> bool:
    """Return whether a class customizes how its objects are pickled."""
    if any(hasattr(kind, name) for name in ("__getnewargs__", "__getnewargs_ex__")):
        return True
    return any(
        getattr(kind, name, None) is not getattr(object, name, None)
        for name in ("__reduce_ex__", "__reduce__", "__getstate__")
    )


def is_made_of_attributes(first: Any, protocol: int) -> bool:
    """Return whether pickle reduces all objects of a class to the class and their attributes.

    Objects without attributes, or with one of :data:`_INSTANCE_METHODS`, are exceptions.

    Args:
        first: An object of the class.
        protocol: The pickle protocol, 2 or later.

    >>> class Point:
    ...     def __init__(self, x: int) -> None:
    ...         self.x = x
    >>> is_made_of_attributes(Point(1), 2), is_made_of_attributes(1.5, 2)
    (True, False)
    """
    kind = type(first)
    if _has_own_reduction(kind) or any(map(_has_other_attributes, kind.__mro__[:-1])):
        return False
    attributes = getattr(first, "__dict__", None)
    if not attributes:
        return False
    reduced: Any = object.__reduce_ex__(first, protocol)
    made_by, arguments, *parts = reduced
    is_made = made_by is _NEWOBJ and len(arguments) == 1 and arguments[0] is kind
    return is_made and all(map(operator.is_, parts, (attributes, None, None)))


def _has_other_attributes(base: type) -> bool:
    """Return whether a class has slots, which the first object may not use, or attribute hooks."""
    defined = vars(base)
    own = defined.get("__dict__")
    if own is not None and not isinstance(own, GetSetDescriptorType):
        return True
    return bool(defined.get("__slots__")) or _has_code_for_attributes(base)


class _NotPlainError(Exception):
    """The fast path does not apply to an object."""


class FastPathPickler(pickle.Pickler):
    """The C pickler without ``persistent_id``, for plain data only.

    The C pickler calls ``persistent_id``, if there is one, for each object: a state with 200,000
    small entries has two million objects, none of which needs one. Without that call, and without
    ``object.__reduce_ex__``, which looks up six methods in each object, saving takes half the time
    (benchmark rows save-plain and save-objects). The pickler gives up when it meets anything that
    is not plain. Until then no code but pickle's own has run, so the other pickler can start over.

    Args:
        protocol: The pickle protocol, one of :data:`_PROTOCOLS`.
        is_plain: Takes a type and the first object of it; returns whether pickle may write its
            objects alone.
        is_found: Returns whether a class is found by its own module and name.
    """

    def __init__(
        self,
        protocol: int,
        is_plain: Callable[[type, Any], bool],
        is_found: Callable[[type], bool],
    ) -> None:
        self._buffer = io.BytesIO()
        super().__init__(self._buffer, protocol, fix_imports=False)
        self._protocol = protocol
        self._is_plain = is_plain
        self._is_found = is_found
        self._arguments: dict[type, tuple[type] | None] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Leave the object to pickle, or return what pickle would, where pickle is slow."""
        kind = type(obj)
        try:
            arguments = self._arguments[kind]
        except KeyError:
            arguments = self._look_at(kind, obj)
        if arguments is None:
            return NotImplemented
        attributes = obj.__dict__
        return (_NEWOBJ, arguments, attributes) if attributes else NotImplemented

    def try_pickle(self, obj: object) -> bytes | None:
        """Return a pickle of plain data; None if any object is not plain or cannot be pickled."""
        try:
            self.dump(obj)
        except Exception:  # the other pickler meets the same object, and reports it
            return None
        data = self._buffer.getvalue()
        has_reduced = any(self._arguments.values())
        if has_reduced and any(name in data for name in _INSTANCE_METHODS):
            return None
        return data

    def _look_at(self, kind: type, obj: Any) -> tuple[type] | None:
        """Return the constructor arguments of a type whose objects are only attributes, or None."""
        if issubclass(kind, type):
            if obj is set or obj is frozenset or not self._is_found(obj):
                raise _NotPlainError
            return None
        if not self._is_plain(kind, obj):
            raise _NotPlainError
        self._arguments[kind] = (kind,) if is_made_of_attributes(obj, self._protocol) else None
        return self._arguments[kind]


_FATAL = (ArchiveError, TargetError, MemoryError, RecursionError)
"""Errors that the object does not cause; they end the save at once."""

_MAX_PROBLEMS = 1000


_Handler = Callable[[Any], Any]


class Pickler(pickle.Pickler):
    """The C pickler, which asks once per type how to reduce its objects."""

    def __init__(self, protocol: int, context: PickleContext, observer: Observer | None) -> None:
        self._buffer = io.BytesIO()
        super().__init__(self._buffer, protocol, fix_imports=False)
        self._protocol = protocol
        self._context = context
        self.observer = observer
        self.naming = NameReducer(context)
        self._reducers: dict[type, _Handler | None] = {}
        # By ID, with the object, so that no other one gets the ID while the pickler exists.
        self._packaged: dict[int, tuple[object, object]] = {}
        self._graph_modules = GraphModules()
        self._graph = ObjectGraph(self._attach, self._own_reduce, self._attribute)
        self._sets = SetWriter(self._graph.sort)
        self.current: object = None
        self.problems: list[PicklingProblem] = []
        self.persistent_id = self._persistent_ids()  # type: ignore[method-assign]

    def dump_all(self, obj: object) -> tuple[bytes, list[bytes]]:
        """Pickle an object, and then what the observer adds, with one memo for all."""
        plain = self._plain_pickle(obj)
        if plain is not None:
            return plain, []
        pieces = [self._dump_piece(obj)]
        # The pickle of a hook may reach modules with further hooks, so there may be more payloads.
        while self.observer is not None:
            payload = self.observer.next_payload()
            if payload is None:
                break
            pieces.append(self._dump_piece(payload))
        return pieces[0], pieces[1:]

    def _dump_piece(self, obj: object) -> bytes:
        start = self._buffer.tell()
        self._graph.add_root(obj)
        self.dump(obj)
        return self._sets.finish(self._buffer.getvalue()[start:])

    def _plain_pickle(self, obj: object) -> bytes | None:
        """Return a pickle of plain data in a quarter of the time; None for other objects."""
        has_more = self.observer is not None and self.observer.has_payload
        is_asked_of_all = any(map(self._persistent_handler, _CONTAINERS_AND_VALUES))
        if has_more or is_asked_of_all or self._protocol not in _PROTOCOLS:
            return None
        data = FastPathPickler(self._protocol, self._is_plain, self._is_found).try_pickle(obj)
        if data is None:
            self.naming = NameReducer(self._context)  # forget the names that were not written
        return data

    def _is_plain(self, kind: type, first: Any) -> bool:
        if self._persistent_handler(kind) is not None:
            return False
        return kind in _REDUCED_ALONE or self._reducing_handler(kind, first) is None

    def _is_found(self, cls: type) -> bool:
        return self.naming.reduce_class(cls) is NotImplemented

    def note_problem(self, obj: object, failure: Exception) -> None:
        """Record that an object cannot be saved; pickling continues to find other problems.

        Raises:
            Exception: The failure itself, if there are too many problems.
        """
        location = self.observer.locate(obj) if self.observer is not None else None
        self.problems.append(PicklingProblem(obj, failure, location))
        if len(self.problems) > _MAX_PROBLEMS:
            raise failure

    def _persistent_ids(self) -> _Handler:
        """Return the ``persistent_id`` function, which returns None for objects to be pickled.

        A large state calls it ten million times; a closure takes half the time of a method.
        """
        handlers: dict[type, _Handler | None] = {}

        def persistent_id(obj: Any) -> Any:
            kind = type(obj)
            try:
                handler = handlers[kind]
            except KeyError:
                handler = handlers[kind] = self._persistent_handler(kind)
            return None if handler is None else self._attempt(handler, obj, _NOTHING_PERSISTENT)

        return persistent_id

    def reducer_override(self, obj: Any) -> Any:
        """Return an object's reduction; NotImplemented leaves the object to pickle."""
        self.current = obj
        kind = type(obj)
        try:
            handler = self._reducers[kind]
        except KeyError:
            handler = self._reducers[kind] = self._reducing_handler(kind, obj)
        return NotImplemented if handler is None else self._attempt(handler, obj, _NOTHING)

    def _attempt(self, handler: _Handler, obj: Any, instead: Any) -> Any:
        try:
            return handler(obj)
        except _FATAL:
            raise
        except Exception as failure:  # an object's own methods may raise anything
            self.note_problem(obj, failure)
            return instead

    def _persistent_handler(self, kind: type) -> _Handler | None:
        if kind is set or kind is frozenset:
            return self._sets.persistent_id
        if (parts := storage_parts(kind)) is not None:
            return lambda obj: self._storage_id(*parts(obj))
        # These also have a `__reduce_package__` of torch's, which would write them itself.
        if issubclass(kind, torch.jit.ScriptModule):
            return self._script_module
        if callable(getattr(kind, "__reduce_package__", None)) and not issubclass(kind, type):
            return None if isinstance(ROWS.find(kind), UnsupportedType) else self._reduce_package
        if issubclass(kind, ModuleType):
            return self.naming.module_id if ROWS.find(kind) is None else None
        if kind is ModuleNamed:
            return lambda module: self.naming.named_module_id(module.name)
        if kind is Placeholder:
            return lambda nothing: _NOTHING_PERSISTENT
        if kind is Packaged:
            return lambda made: self._once(made, lambda: (made.function, made.arguments))
        return None

    def _reducing_handler(self, kind: type, first: Any) -> _Handler | None:
        if kind is ReducedObject:
            return lambda made: made.reduction
        if issubclass(kind, FunctionType):
            return self.naming.reduce_function
        if issubclass(kind, MethodType):
            return self.naming.reduce_method
        if issubclass(kind, CellType):
            return self.naming.reduce_cell
        # In the order of pickle, in which a registered reducer comes before the rule for classes.
        if kind in copyreg.dispatch_table:
            return self._observed_reducer(kind) or self._own_reduce
        if issubclass(kind, type):
            return self.naming.reduce_class
        return self._observed_reducer(kind) or self._special_reducer(kind, first)

    def _observed_reducer(self, kind: type) -> _Handler | None:
        observed = self.observer.reducer(kind) if self.observer is not None else None
        if observed is None or isinstance(ROWS.find(kind), UnsupportedType):
            return None
        if issubclass(kind, torch.Tensor):
            return lambda obj: move_state_last(observed(obj, lambda: self._plain_reduction(obj)))
        return lambda obj: observed(obj, lambda: self._plain_reduction(obj))

    def _special_reducer(self, kind: type, first: Any) -> _Handler | None:
        """Return the reducer of a type with a row in the tables; else the plain reducer."""
        if kind is BuiltinFunctionType:
            return reduce_pybind11_function
        if kind.__module__ == PYBIND11_MODULE:
            return reduce_pybind11_owner
        row = ROWS.find(kind)
        reducer = (
            self._plain_reducer(kind, first)
            if row is None
            else lambda obj: reduce_by_row(row, obj, self._graph, self._own_reduce)
        )
        # Only the standard streams themselves exist elsewhere, and not all objects of their types.
        if not is_kind_of_stream(kind):
            return reducer
        return lambda obj: reduce_stream(obj) or (reducer or self._own_reduce)(obj)

    def _plain_reducer(self, kind: type, first: Any) -> _Handler | None:
        """Return a type's reducer, or None if pickle alone suffices (fast, cannot fail)."""
        if kind in _REDUCED_ALONE:
            return None
        if issubclass(kind, (set, frozenset)):
            return lambda obj: self._sets.sort_reduction(self._own_reduce(obj))
        if issubclass(kind, torch.Tensor):
            return lambda obj: move_state_last(self._plain_reduction(obj))
        if _has_own_reduction(kind):
            return self._own_reduce
        lacks_setstate = not hasattr(kind, "__setstate__")  # then loading calls __getattr__ for it
        if lacks_setstate and any(map(_has_code_for_attributes, kind.__mro__[:-1])):
            return self._reduce_forwarding
        try:
            reduced = first.__reduce_ex__(self._protocol)
        except Exception:  # reported when the object is reduced
            return self._own_reduce
        return self._constant if is_stateless(reduced) else None

    def _reduce_forwarding(self, obj: Any) -> Any:
        reduced = obj.__reduce_ex__(self._protocol)
        return *(*reduced, None, None, None)[:5], set_state

    def _constant(self, obj: Any) -> Any:
        return reduce_constant(obj, obj.__reduce_ex__(self._protocol), self._graph)

    def _plain_reduction(self, obj: Any) -> Any:
        kind = type(obj)
        registered = copyreg.dispatch_table.get(kind)
        if registered is not None:
            return registered(obj)
        if issubclass(kind, torch.Tensor):
            return ordinary_reduction(obj) or reduce_tensor(obj, self._protocol)
        return obj.__reduce_ex__(self._protocol)

    def _own_reduce(self, obj: Any) -> Any:
        return self.naming.resolve_name(obj, self._plain_reduction(obj))

    def _attribute(self, module: ModuleType, name: str) -> Any:
        return self.naming.reduce_attribute(module, name)

    def _storage_id(self, storage: torch.UntypedStorage, kind: object, size: int) -> Any:
        # The save has failed already: pickling continues only to find all problems.
        key = "0" if self.problems else self._context.add_storage(storage)
        return ("storage", kind, key, torch.serialization.location_tag(storage), size)

    def _attach(self, data: bytes) -> str:
        return "" if self.problems else self._context.add_attachment(data)

    def _script_module(self, obj: Any) -> object:
        def reduce() -> tuple[Any, ...]:
            record = self._attach(script_bytes(obj))
            return self._observed(obj, (load_script_module, (record,)))

        return self._once(obj, reduce)

    def _reduce_package(self, obj: Any) -> object:
        def reduce() -> tuple[Any, ...]:
            parts = self._graph_modules.reduction(obj)
            if parts is None:
                parts = without_folders(obj.__reduce_package__(self._context.exporter))
            return self._observed(obj, parts)

        return self._once(obj, reduce)

    def _observed(self, obj: object, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        return parts if self.observer is None else self.observer.on_packaged(obj, parts)

    def _once(self, obj: object, reduce: Callable[[], tuple[object, ...]]) -> object:
        if id(obj) not in self._packaged:
            self.current = obj
            number = self._context.next_reduce_id()
            function, arguments = reduce()
            self._packaged[id(obj)] = (obj, ("reduce_package", number, function, arguments))
        return self._packaged[id(obj)][1]


_NOTHING = (Placeholder(), ())
_NOTHING_PERSISTENT = ("module", "builtins")


class Pickled(NamedTuple):
    """The result of pickling an object.

    Attributes:
        data: The pickle.
        references: All referenced names, in order of first use.
        appended: Pickles that continue it, for the observer's additional objects. The same
            unpickler loads them one after another; they refer to objects of the first.
        loose_sources: The sources of functions that are saved without a module. Their imports
            are recorded nowhere else.
        needs_modpack: Whether torch.package's unpickler would create another object, or none.
    """

    data: bytes
    references: tuple[GlobalReference, ...]
    appended: bytes = b""
    loose_sources: tuple[str, ...] = ()
    needs_modpack: bool = False


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
        obj: The object.
        context: Stores storages and resolves names.
        resource: The resource's name, for errors.
        protocol: The pickle protocol (PEP 3154, PEP 574).
        root: The name of ``obj`` in attribute paths of errors.
        observer: Receives the objects of certain types.

    Raises:
        PicklingError: If something in it cannot be pickled. It lists all such objects with their
            attribute paths.
    """
    pickler = Pickler(protocol, context, observer)
    try:
        data, appended = pickler.dump_all(obj)
    except RecursionError as failure:
        reason = (
            "the object nests too deeply for pickle. Reduce its nesting, or raise the limit with "
            "sys.setrecursionlimit."
        )
        raise PicklingError(resource, ((None, reason),)) from failure
    except _FATAL:
        raise
    except Exception as failure:  # an object's own methods may raise anything
        pickler.note_problem(pickler.current, failure)
    finally:
        # Break the reference cycle between the pickler and its memo, which would otherwise
        # keep everything alive until the garbage collector finds it.
        pickler.clear_memo()
    naming = pickler.naming
    if pickler.problems:
        values = naming.script_values
        error = problems_as_error(pickler.problems, resource, obj, root, values)
        raise error from pickler.problems[0].failure
    references = tuple(naming.references)
    # A loaded object's class lives below a private namespace, and the C pickler wrote that path.
    renames = {r.live_module: r.module for r in references if r.live_module != r.module}
    if renames:
        data = rename_modules(data, renames)
        appended = [rename_modules(piece, renames) for piece in appended]
    needs_modpack = naming.has_modules or any(each.module == MODULE for each in references)
    loose = tuple(naming.loose_sources)
    return Pickled(data, references, b"".join(appended), loose, needs_modpack)
