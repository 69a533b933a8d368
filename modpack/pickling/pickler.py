"""The pickler: an object becomes a pickle, storages, and the names that it refers to.

Python's C pickler does the work. It is asked about each type once, when the first object of it is
met: what reduces such objects (:mod:`modpack.pickling.reducers`), and what stands for those that do
not go through the pickle. Plain data goes through :class:`FastPathPickler` first.
"""

from __future__ import annotations

import copyreg
import io
import operator
import pickle
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import CellType, FunctionType, GetSetDescriptorType, MethodType, ModuleType
from typing import Any, Final

import torch

from modpack.errors import ArchiveError, PicklingError, TargetError
from modpack.pickling.base import (
    GlobalReference,
    Observer,
    Packaged,
    PickleContext,
    PicklingProblem,
    UnsupportedType,
    problems_as_error,
)
from modpack.pickling.graph_context import ObjectGraph
from modpack.pickling.names import ModuleNamed, Naming
from modpack.pickling.pickle_edits import ReducedObject, SetWriter, rename_modules
from modpack.pickling.reducers import (
    BOUND,
    ROWS,
    GraphModules,
    is_empty,
    is_kind_of_stream,
    reduce_bound,
    reduce_constant,
    reduce_stream,
    reduced_by,
)
from modpack.pickling.remade import set_state
from modpack.pickling.tensors import (
    ordinary_reduction,
    reduce_tensor,
    state_last,
    storage_parts,
)
from modpack.pickling.torch_archives import load_script_module, script_bytes, without_folders


class Placeholder:
    """Takes the place of an object that cannot be saved, so that others can be looked at."""

    def __call__(self) -> None:
        """Pickle takes callables only."""


_REDUCED_ALONE: Final = frozenset({OrderedDict, defaultdict, deque})
"""Types with a reduction of their own that cannot fail, and runs no code but Python's."""
_MADE_BY: Final = getattr(copyreg, "__newobj__")  # noqa: B009 - hidden from type checkers
"""What makes an object of its class alone, when it is loaded; pickle has an opcode for it."""
_METHODS_OF_OBJECTS: Final = (b"__getstate__", b"__reduce_ex__")
"""Methods that pickle takes from an object itself if it has an attribute that is named like that.
Whether there is one is seen in the pickle, in a twentieth of the time of looking in each object."""
_CODE_OF_CLASSES: Final = ("__getattr__", "__getattribute__")
_CONTAINERS_AND_VALUES: Final = (dict, list, tuple, str, bytes, int, float, bool, type(None))
"""Types that pickle writes without asking anybody but for a persistent id."""
_PROTOCOLS: Final = frozenset({2, 3})
"""In these pickle names the type of a set. In later ones it writes sets without asking anybody, in
an order that is not the same in every process."""


def _has_code_for_attributes(base: type) -> bool:
    return any(name in vars(base) for name in _CODE_OF_CLASSES)


def _has_own_reduction(kind: Any) -> bool:
    """Whether a class has a say in how its objects are pickled."""
    if any(hasattr(kind, name) for name in ("__getnewargs__", "__getnewargs_ex__")):
        return True
    return any(
        getattr(kind, name, None) is not getattr(object, name, None)
        for name in ("__reduce_ex__", "__reduce__", "__getstate__")
    )


def is_made_of_attributes(first: Any, protocol: int) -> bool:
    """Whether pickle reduces all objects of a class to the class and their attributes.

    Unless they have no attributes, or one of :data:`_METHODS_OF_OBJECTS`.

    Args:
        first: an object of the class.
        protocol: the pickle protocol, 2 or later.

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
    is_made = made_by is _MADE_BY and len(arguments) == 1 and arguments[0] is kind
    return is_made and all(map(operator.is_, parts, (attributes, None, None)))


def _has_other_attributes(base: type) -> bool:
    """Whether a class has slots, which the first object need not use, or code for attributes."""
    defined = vars(base)
    own = defined.get("__dict__")
    if own is not None and not isinstance(own, GetSetDescriptorType):
        return True
    return bool(defined.get("__slots__")) or _has_code_for_attributes(base)


class _NotPlainError(Exception):
    """Something has to be looked at by the other pickler."""


class FastPathPickler(pickle.Pickler):
    """The C pickler, until it meets anything that is not plain.

    The C pickler asks for a persistent id for each object that it meets, if there is anybody to be
    asked: a state of 200,000 small entries has two million objects, none of which has one. Without
    that, and with ``object.__reduce_ex__`` done here, which would look in each object for six
    methods that its class does not have, saving takes half the time (benchmark rows save-plain and
    save-objects). Until it gives up no code but pickle's own has run, so the other pickler can
    begin anew.

    Args:
        protocol: the pickle protocol, one of :data:`_PROTOCOLS`.
        is_plain: of a type, and the first object of it, whether pickle may write its objects alone.
        is_found: whether a class is found by the name that it gives itself.
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
        """Leave the object to pickle, or do what pickle would do, where that is slow."""
        kind = type(obj)
        try:
            arguments = self._arguments[kind]
        except KeyError:
            arguments = self._look_at(kind, obj)
        if arguments is None:
            return NotImplemented
        attributes = obj.__dict__
        return (_MADE_BY, arguments, attributes) if attributes else NotImplemented

    def pickled(self, obj: object) -> bytes | None:
        """The pickle of plain data; None if an object is anything else, or cannot be pickled."""
        try:
            self.dump(obj)
        except Exception:  # whatever it is, the other pickler meets it too, and tells of it
            return None
        data = self._buffer.getvalue()
        has_reduced = any(self._arguments.values())
        if has_reduced and any(name in data for name in _METHODS_OF_OBJECTS):
            return None
        return data

    def _look_at(self, kind: type, obj: Any) -> tuple[type] | None:
        """From what objects of a type are made that are nothing but their attributes."""
        if issubclass(kind, type):
            if obj is set or obj is frozenset or not self._is_found(obj):
                raise _NotPlainError
            return None
        if not self._is_plain(kind, obj):
            raise _NotPlainError
        self._arguments[kind] = (kind,) if is_made_of_attributes(obj, self._protocol) else None
        return self._arguments[kind]


_NO_FAULT_OF_THE_OBJECT = (ArchiveError, TargetError, MemoryError, RecursionError)
"""What ends the saving of an object at once."""

_MAX_PROBLEMS = 1000


_Handler = Callable[[Any], Any]


class Pickler(pickle.Pickler):
    """The C pickler, with a look at each type the first time that it is met."""

    def __init__(self, protocol: int, context: PickleContext, observer: Observer | None) -> None:
        self._buffer = io.BytesIO()
        super().__init__(self._buffer, protocol, fix_imports=False)
        self._protocol = protocol
        self._context = context
        self.observer = observer
        self.naming = Naming(context)
        self._reducers: dict[type, _Handler | None] = {}
        self._packaged: dict[int, tuple[object, object]] = {}
        self._graph_modules = GraphModules()
        self._graph = ObjectGraph(self._attach, self._own_reduce)
        self._sets = SetWriter(self._graph.ordered)
        self.current: object = None
        self.problems: list[PicklingProblem] = []
        self.persistent_id = self._persistent_ids()  # type: ignore[method-assign]

    def dump_all(self, obj: object) -> tuple[bytes, list[bytes]]:
        """Pickle an object, and what the observer appends, with one memo for all."""
        plain = self._plain_pickle(obj)
        if plain is not None:
            return plain, []
        pieces = [self._dump_piece(obj)]
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
        return self._sets.finished(self._buffer.getvalue()[start:])

    def _plain_pickle(self, obj: object) -> bytes | None:
        """The pickle of plain data, made four times as fast; None of anything else."""
        has_more = self.observer is not None and self.observer.has_payload
        is_asked_of_all = any(map(self._persistent_handler, _CONTAINERS_AND_VALUES))
        if has_more or is_asked_of_all or self._protocol not in _PROTOCOLS:
            return None
        data = FastPathPickler(self._protocol, self._is_plain, self._is_found).pickled(obj)
        if data is None:
            self.naming = Naming(self._context)  # what it has named, it takes for written
        return data

    def _is_plain(self, kind: type, first: Any) -> bool:
        if self._persistent_handler(kind) is not None:
            return False
        return kind in _REDUCED_ALONE or self._reducing_handler(kind, first) is None

    def _is_found(self, cls: type) -> bool:
        return self.naming.of_class(cls) is NotImplemented

    def note_problem(self, obj: object, failure: Exception) -> None:
        """Remember that an object cannot be saved, and go on to find what else cannot.

        Raises:
            Exception: the failure itself, where there are too many to go on.
        """
        place = self.observer.whereabouts(obj) if self.observer is not None else None
        self.problems.append(PicklingProblem(obj, failure, place))
        if len(self.problems) > _MAX_PROBLEMS:
            raise failure

    def _persistent_ids(self) -> _Handler:
        """Tells what stands for an object that does not go through the pickle; None if it does.

        It is called for every object, ten million times for a large state: as a function of its own
        it takes half the time that it would take as a method.
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
        """What an object is reduced to; NotImplemented for what pickle does on its own."""
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
        except _NO_FAULT_OF_THE_OBJECT:
            raise
        except Exception as failure:  # an object's own methods may raise anything
            self.note_problem(obj, failure)
            return instead

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
        if kind is set or kind is frozenset:
            return self._sets.persistent_id
        if (parts := storage_parts(kind)) is not None:
            return lambda obj: self._storage_id(*parts(obj))
        if issubclass(kind, torch.jit.ScriptModule):
            return self._script_module
        if callable(getattr(kind, "__reduce_package__", None)) and not issubclass(kind, type):
            return None if isinstance(ROWS.of(kind), UnsupportedType) else self._reduce_package
        if issubclass(kind, ModuleType):
            return self.naming.module if ROWS.of(kind) is None else None
        if kind is ModuleNamed:
            return lambda module: ("module", module.name)
        if kind is Placeholder:
            return lambda nothing: _NOTHING_PERSISTENT
        if kind is Packaged:
            return lambda made: self._once(made, lambda: (made.function, made.arguments))
        return None

    def _reducing_handler(self, kind: type, first: Any) -> _Handler | None:
        if kind is ReducedObject:
            return lambda made: made.reduction
        if issubclass(kind, FunctionType):
            return self.naming.of_function
        if issubclass(kind, MethodType):
            return self.naming.method
        if issubclass(kind, CellType):
            return self.naming.cell
        if kind in copyreg.dispatch_table:
            return self._observed_reducer(kind) or self._own_reduce
        if issubclass(kind, type):
            return self.naming.of_class
        return self._observed_reducer(kind) or self._special_reducer(kind, first)

    def _observed_reducer(self, kind: type) -> _Handler | None:
        observed = self.observer.reducer(kind) if self.observer is not None else None
        if observed is None or isinstance(ROWS.of(kind), UnsupportedType):
            return None
        if issubclass(kind, torch.Tensor):
            return lambda obj: state_last(observed(obj, lambda: self._plain_reduction(obj)))
        return lambda obj: observed(obj, lambda: self._plain_reduction(obj))

    def _special_reducer(self, kind: type, first: Any) -> _Handler | None:
        """For objects that are found in the tables; else what :meth:`_plain_reducer` tells."""
        if kind.__module__ == BOUND:
            return reduce_bound
        row = ROWS.of(kind)
        reducer = (
            self._plain_reducer(kind, first)
            if row is None
            else lambda obj: reduced_by(row, obj, self._graph, self._own_reduce)
        )
        if not is_kind_of_stream(kind):
            return reducer
        return lambda obj: reduce_stream(obj) or (reducer or self._own_reduce)(obj)

    def _plain_reducer(self, kind: type, first: Any) -> _Handler | None:
        """None where pickle may do it alone, which is fast, and cannot fail."""
        if kind in _REDUCED_ALONE:
            return None
        if issubclass(kind, (set, frozenset)):
            return lambda obj: self._sets.reduced(self._own_reduce(obj))
        if issubclass(kind, torch.Tensor):
            return lambda obj: state_last(self._plain_reduction(obj))
        if _has_own_reduction(kind):
            return self._own_reduce
        is_asked = not hasattr(kind, "__setstate__")  # which runs code of the class if it has any
        if is_asked and any(map(_has_code_for_attributes, kind.__mro__[:-1])):
            return self._reduce_forwarding
        try:
            reduced = first.__reduce_ex__(self._protocol)
        except Exception:  # told when it is reduced
            return self._own_reduce
        return self._constant if is_empty(reduced) else None

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
        return self.naming.reduced(obj, self._plain_reduction(obj))

    def _storage_id(self, storage: torch.UntypedStorage, kind: object, size: int) -> Any:
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
        return parts if self.observer is None else self.observer.packaged(obj, parts)

    def _once(self, obj: object, reduce: Callable[[], tuple[object, ...]]) -> object:
        if id(obj) not in self._packaged:
            self.current = obj
            number = self._context.next_reduce_id()
            function, arguments = reduce()
            self._packaged[id(obj)] = (obj, ("reduce_package", number, function, arguments))
        return self._packaged[id(obj)][1]


_NOTHING = (Placeholder(), ())
_NOTHING_PERSISTENT = ("module", "builtins")


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
    references: tuple[GlobalReference, ...]
    appended: bytes = b""
    loose_sources: tuple[str, ...] = ()


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
        PicklingError: something in it cannot be pickled. Tells of everything that cannot, each
            by its attribute path.
    """
    pickler = Pickler(protocol, context, observer)
    try:
        data, appended = pickler.dump_all(obj)
    except RecursionError as failure:
        reason = "the object nests too deeply for pickle"
        raise PicklingError(resource, ((None, reason),)) from failure
    except _NO_FAULT_OF_THE_OBJECT:
        raise
    except Exception as failure:  # an object's own methods may raise anything
        pickler.note_problem(pickler.current, failure)
    finally:
        # What it has met is held in a circle, which would have to be searched for.
        pickler.clear_memo()
    naming = pickler.naming
    if pickler.problems:
        along = naming.globals_along
        error = problems_as_error(pickler.problems, resource, obj, root, along)
        raise error from pickler.problems[0].failure
    references = tuple(naming.references)
    renames = {r.live_module: r.module for r in references if r.live_module != r.module}
    if renames:
        data = rename_modules(data, renames)
        appended = [rename_modules(piece, renames) for piece in appended]
    return Pickled(data, references, b"".join(appended), tuple(naming.loose_sources))
