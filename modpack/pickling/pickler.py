"""The pickler: what is written for an object of each type."""

from __future__ import annotations

import copyreg
import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from modpack.errors import ArchiveError, TargetError
from modpack.pickling.bound import BOUND, reduce_bound
from modpack.pickling.context import Observer, PickleContext
from modpack.pickling.graphmodules import GraphModules
from modpack.pickling.madepaths import without_folders
from modpack.pickling.naming import Naming
from modpack.pickling.ordinarytensors import Reduced, ordinary_reduction
from modpack.pickling.plain import CONTAINERS_AND_VALUES, PROTOCOLS, plain_pickle
from modpack.pickling.problems import Problem
from modpack.pickling.reductions import (
    REDUCED_ALONE,
    Nothing,
    forwards_attributes,
    has_own_reduction,
    reduce_ordered,
)
from modpack.pickling.remade import set_state
from modpack.pickling.rows import Packaged, Refusal
from modpack.pickling.scriptnames import ModuleNamed
from modpack.pickling.sets import SetWriting
from modpack.pickling.storageids import StorageIds
from modpack.pickling.surroundings import Graph
from modpack.pickling.tables import (
    ROWS,
    is_empty,
    is_kind_of_stream,
    reduce_constant,
    reduce_stream,
    reduced_by,
)
from modpack.pickling.tensorreductions import reduce_tensor
from modpack.pickling.tensorstates import state_last
from modpack.pickling.torchscript import load_script_module, script_bytes

__all__ = ["NO_FAULT_OF_THE_OBJECT", "Pickler"]

NO_FAULT_OF_THE_OBJECT = (ArchiveError, TargetError, MemoryError, RecursionError)
"""What ends the saving of an object at once."""

_MOST_PROBLEMS = 1000


_Handler = Callable[[Any], Any]


class Pickler(pickle.Pickler):
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
        self.naming = Naming(context)
        self._reducers: dict[type, _Handler | None] = {}
        self._packaged: dict[int, tuple[object, object]] = {}
        self._graph_modules = GraphModules()
        self._graph = Graph(self._attach, self._own_reduce)
        self._sets = SetWriting(self._graph.ordered)
        self._storage_ids = StorageIds(self._add_storage)
        self.current: object = None
        self.problems: list[Problem] = []
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
        is_asked_of_all = any(map(self._persistent_handler, CONTAINERS_AND_VALUES))
        if has_more or is_asked_of_all or self._protocol not in PROTOCOLS:
            return None
        data = plain_pickle(obj, self._protocol, self._is_plain, self._is_found)
        if data is None:
            self.naming = Naming(self._context)  # what it has named, it takes for written
        return data

    def _is_plain(self, kind: type, first: Any) -> bool:
        if self._persistent_handler(kind) is not None:
            return False
        return kind in REDUCED_ALONE or self._reducing_handler(kind, first) is None

    def _is_found(self, cls: type) -> bool:
        return self.naming.of_class(cls) is NotImplemented

    def note_problem(self, obj: object, failure: Exception) -> None:
        """Remember that an object cannot be saved, and go on to find what else cannot.

        Raises:
            Exception: the failure itself, where there are too many to go on.
        """
        place = self.observer.whereabouts(obj) if self.observer is not None else None
        self.problems.append(Problem(obj, failure, place))
        if len(self.problems) > _MOST_PROBLEMS:
            raise failure

    def _persistent_ids(self) -> _Handler:
        """Tells what stands for an object that does not go through the pickle; None if it does.

        It is called for every object, ten million times for a large state: as a function of its own
        it takes half the time that it would take as a method.
        """
        nothing_to_do: set[type] = set()
        handlers: dict[type, _Handler] = {}

        def persistent_id(obj: Any) -> Any:
            kind = type(obj)
            if kind in nothing_to_do:
                return None
            if kind not in handlers:
                handler = self._persistent_handler(kind)
                if handler is None:
                    nothing_to_do.add(kind)
                    return None
                handlers[kind] = handler
            return self._attempt(handlers[kind], obj, _NOTHING_PERSISTENT)

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
        except NO_FAULT_OF_THE_OBJECT:
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
        if (of_storages := self._storage_ids.handler(kind)) is not None:
            return of_storages
        if issubclass(kind, torch.jit.ScriptModule):
            return self._script_module
        if callable(getattr(kind, "__reduce_package__", None)) and not issubclass(kind, type):
            return None if isinstance(ROWS.of(kind), Refusal) else self._reduce_package
        if issubclass(kind, ModuleType):
            return self.naming.module if ROWS.of(kind) is None else None
        if kind is ModuleNamed:
            return lambda module: ("module", module.name)
        if kind is Nothing:
            return lambda nothing: _NOTHING_PERSISTENT
        if kind is Packaged:
            return lambda made: self._once(made, lambda: (made.function, made.arguments))
        return None

    def _reducing_handler(self, kind: type, first: Any) -> _Handler | None:
        if kind is Reduced:
            return lambda made: made.reduction
        if issubclass(kind, FunctionType):
            return self.naming.of_function
        if issubclass(kind, MethodType):
            return self.naming.method
        if issubclass(kind, CellType):
            return self.naming.cell
        if kind in copyreg.dispatch_table:
            return self._observed_reducer(kind) or self._registered_reduce
        if issubclass(kind, type):
            return self.naming.of_class
        return self._observed_reducer(kind) or self._special_reducer(kind, first)

    def _observed_reducer(self, kind: type) -> _Handler | None:
        observed = self.observer.reducer(kind) if self.observer is not None else None
        if observed is None or isinstance(ROWS.of(kind), Refusal):
            return None
        if issubclass(kind, torch.Tensor):
            return lambda obj: state_last(observed(obj, lambda: self._plain_reduction(obj)))
        return lambda obj: observed(obj, lambda: self._plain_reduction(obj))

    def _special_reducer(self, kind: type, first: Any) -> _Handler | None:
        """For objects that are found in the tables; else what :meth:`_plain_reducer` tells."""
        row = ROWS.of(kind)
        reducer = self._plain_reducer(kind, first) if row is None else None
        if row is not None:
            reducer = lambda obj: reduced_by(row, obj, self._graph, self._own_reduce)  # noqa: E731
        if kind.__module__ == BOUND:
            return reduce_bound
        if not is_kind_of_stream(kind):
            return reducer
        return lambda obj: reduce_stream(obj) or (reducer or self._own_reduce)(obj)

    def _plain_reducer(self, kind: type, first: Any) -> _Handler | None:
        """None where pickle may do it alone, which is fast, and cannot fail."""
        if kind in REDUCED_ALONE:
            return reduce_ordered if kind is OrderedDict else None
        if issubclass(kind, (set, frozenset)):
            return lambda obj: self._sets.reduced(self._own_reduce(obj))
        if issubclass(kind, torch.Tensor):
            return lambda obj: state_last(self._plain_reduction(obj))
        if has_own_reduction(kind):
            return self._own_reduce
        if forwards_attributes(kind):
            return self._reduce_forwarding
        try:
            reduced = first.__reduce_ex__(self._protocol)
        except Exception:  # told when it is reduced
            return self._own_reduce
        return self._constant if is_empty(reduced) else None

    def _reduce_forwarding(self, obj: Any) -> Any:
        function, arguments, *rest = obj.__reduce_ex__(self._protocol)
        state, items, pairs = (*rest, None, None, None)[:3]
        return function, arguments, state, items, pairs, set_state

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

    def _registered_reduce(self, obj: Any) -> Any:
        return self.naming.reduced(obj, copyreg.dispatch_table[type(obj)](obj))

    def _own_reduce(self, obj: Any) -> Any:
        return self.naming.reduced(obj, obj.__reduce_ex__(self._protocol))

    def _add_storage(self, storage: torch.UntypedStorage) -> str:
        return "0" if self.problems else self._context.add_storage(storage)

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


_NOTHING = (Nothing(), ())
_NOTHING_PERSISTENT = ("module", "builtins")
