"""Preservation of the live model during its reference run.

A call may change more than it returns: flags of a data-dependent initialization, hooks that remove
themselves, counters, caches. The user goes on with the model, so the run must leave no trace.
"""

from __future__ import annotations

import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType, MemberDescriptorType
from typing import Any, TypeAlias

import torch
from torch.nn.parameter import is_lazy

from modpack.saving.object_paths import iter_objects

RestoreTensors = Callable[[], None]
"""Restores the content of every tensor that was saved with the model and has changed."""
_Restore: TypeAlias = Callable[[], object]
_EMPTY = object()


@contextmanager
def preserve_model(model: Any, restore_saved: RestoreTensors) -> Iterator[None]:
    """Restore everything that a run changed in a model, by identity and contents.

    This covers attributes, slots, containers, closures, hooks, gradients, parameters and buffers,
    and random generators of all objects that can be reached from the model. Files and the state of
    other objects that are implemented in C are not restored. A lazy module is initialized for good,
    because torch changes its parameters in place.

    Args:
        model: The live model.
        restore_saved: Restores the saved tensors.
    """
    # A list and no generator: all snapshots must be taken before the run.
    restores = [restore for obj in iter_objects(model) for restore in _snapshots(obj)]
    try:
        yield
    finally:
        with torch._C.DisableTorchFunctionSubclass():
            for restore in restores:
                restore()
        # Last, when each tensor has its own memory again: contents are copied into that.
        restore_saved()


def _snapshots(obj: Any) -> Iterator[_Restore]:
    """Yield functions that restore the state that an object has now."""
    kind = type(obj)
    if isinstance(obj, torch.Tensor):
        yield from _tensor_snapshots(obj)
    if issubclass(kind, dict):
        yield _of_mapping(obj)
    for sequence in (list, deque, set, bytearray):
        if issubclass(kind, sequence):
            yield _of_members(sequence, obj)
    if isinstance(obj, torch.nn.Module):
        tables: tuple[Any, ...] = (obj._parameters, obj._buffers, obj._modules)
        for table in tables:  # not those of a lazy module that gets another class
            yield _of_mapping(table, obj) if isinstance(table, dict) else _of_script_table(table)
    if isinstance(obj, FunctionType):
        yield from map(_of_cell, obj.__closure__ or ())
    if isinstance(obj, random.Random):
        state = obj.getstate()
        yield lambda: obj.setstate(state)
    elif isinstance(obj, torch.Generator):
        seed = obj.get_state()
        yield lambda: obj.set_state(seed)
    # A numpy.random.Generator, recognized without importing numpy.
    elif "numpy" in sys.modules and hasattr(kind, "bit_generator"):
        bits = obj.bit_generator
        yield partial(setattr, bits, "state", bits.state)
    try:
        # Not getattr, which may run code of the class.
        attributes = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        attributes = None
    if type(attributes) is dict and not issubclass(kind, type):
        yield _of_mapping(attributes, obj)
    for base in kind.__mro__:
        slots = vars(base).items() if "__slots__" in vars(base) else ()
        yield from (_of_slot(s, obj) for _, s in slots if type(s) is MemberDescriptorType)


def _of_mapping(mapping: Any, owner: Any = None) -> _Restore:
    """Return a function that restores a dict, unless its owner is of another class by then."""
    # Methods of a subclass may have effects of their own, and those of dict would leave the order
    # of an OrderedDict inconsistent.
    base: Any = OrderedDict if isinstance(mapping, OrderedDict) else dict
    before, kind = list(base.items(mapping)), type(owner)

    def restore() -> None:
        now = base.items(mapping)
        # By identity: an equal value is another object, and ``==`` may be the model's own code.
        is_same = len(now) == len(before) and all(
            key is old_key and value is old
            for (key, value), (old_key, old) in zip(now, before, strict=True)
        )
        if not is_same and type(owner) is kind:
            # The order counts, too: it is that of a module's layers or hooks.
            base.clear(mapping)
            for key, value in before:
                base.__setitem__(mapping, key, value)

    return restore


def _of_members(base: Any, members: Any) -> _Restore:
    before = list(base.__iter__(members))

    def restore() -> None:
        if list(map(id, base.__iter__(members))) != list(map(id, before)):
            base.clear(members)
            (base.update if base is set else base.extend)(members, before)

    return restore


def _of_script_table(table: MutableMapping[str, Any]) -> _Restore:
    """Return a function that restores a table of a ScriptModule, whose set of names is fixed."""
    before = dict(table)

    def restore() -> None:
        now = dict(table)
        for name, value in before.items():
            if now[name] is not value:
                table[name] = value

    return restore


def _of_cell(cell: CellType) -> _Restore:
    try:
        before = cell.cell_contents
    except ValueError:  # it is empty
        return lambda: None
    return lambda: setattr(cell, "cell_contents", before)


def _of_slot(slot: Any, obj: Any) -> _Restore:
    def read() -> Any:
        try:
            return slot.__get__(obj, type(obj))
        except AttributeError:
            return _EMPTY

    before = read()

    def restore() -> None:
        now = read()
        if now is not before:
            slot.__delete__(obj) if before is _EMPTY else slot.__set__(obj, before)

    return restore


def _tensor_snapshots(tensor: torch.Tensor) -> Iterator[_Restore]:
    if is_lazy(tensor):
        return
    with torch._C.DisableTorchFunctionSubclass():  # subclasses may reject these operations
        data, needs_grad, hooks = tensor.data, tensor.requires_grad, tensor._backward_hooks
        grad = tensor.grad if tensor.is_leaf else None

    def restore() -> None:
        # `data` keeps the old memory alive, so no other tensor can have its address.
        if _has_moved(tensor, data):
            tensor.data = data
        if tensor.is_leaf:
            if tensor.requires_grad != needs_grad:
                tensor.requires_grad_(needs_grad)
            if tensor.grad is not grad:
                tensor.grad = grad

    yield restore
    if hooks:
        yield _of_mapping(hooks)


def _has_moved(tensor: torch.Tensor, data: torch.Tensor) -> bool:
    """Return whether a tensor may refer to other memory than ``data``, its earlier data."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return True  # composed of several tensors, without a data pointer of its own
    return tensor.data_ptr() != data.data_ptr() or tensor.shape != data.shape
