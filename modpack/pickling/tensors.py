"""Reductions of ordinary tensors, made without the detours that torch takes.

torch asks each tensor for all that tensors may be, makes three objects for its storage, and for a
parameter another tensor. Nearly all tensors are ordinary: dense, in the memory of the CPU, without
attributes. Their reductions are made here in a third of the time; what is written is the same.

What a tensor's reduction tells of the storage that it is saved with.

Reductions of tensors that keep what torch's own leave behind without a word.

Attributes of tensors that may lead back to the tensor: they are set once it has been made.

What compiling leaves on tensors: it tells of this process, and is left out of packages.

What stands for storages in a pickle, while their bytes go elsewhere.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Parameter, UninitializedParameter

from modpack.core.tensors import LARGE, StorageView
from modpack.pickling.base import RefusedError
from modpack.pickling.tensor_rebuilding import PACKED, freed_tensor

ORDINARY = (torch.Tensor, Parameter)
"""The types of tensors that may be ordinary; a class derived from them has a say in everything."""


class StoragePlace:
    """Stands for a typed storage in a reduction.

    Args:
        storage: the storage.
        dtype: the type of its elements.
    """

    __slots__ = ("dtype", "storage")

    def __init__(self, storage: torch.UntypedStorage, dtype: torch.dtype) -> None:
        self.storage = storage
        self.dtype = dtype


class Reduced:
    """Stands for an object of which the reduction is known.

    Args:
        reduction: the object's.
    """

    __slots__ = ("reduction",)

    def __init__(self, reduction: tuple[Any, ...]) -> None:
        self.reduction = reduction


def ordinary_reduction(tensor: Any) -> tuple[Any, ...] | None:
    """What torch reduces a tensor to, with placeholders inside; None if torch has to be asked."""
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return None  # somebody watches what is asked of tensors, and may change it
    if type(tensor) not in ORDINARY or tensor.__dict__ or tensor._backward_hooks:
        return None
    if not is_ordinary(tensor) or tensor.dtype not in _typed_storage():
        return None
    needs_gradients = tensor.requires_grad
    if type(tensor) is not Parameter:
        return _reduction(tensor, needs_gradients)
    hooks: OrderedDict[int, Any] = OrderedDict()  # a place for them, which torch never fills
    arguments = (Reduced(_reduction(tensor, False)), needs_gradients, hooks)
    return torch._utils._rebuild_parameter, arguments


def _reduction(tensor: torch.Tensor, needs_gradients: bool) -> tuple[Any, ...]:
    hooks: OrderedDict[int, Any] = OrderedDict()
    storage, dtype = tensor.untyped_storage(), tensor.dtype
    offset, shape, stride = int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride()
    if offset or tensor.nbytes != storage.nbytes() or not tensor.is_contiguous():
        view = StorageView(offset, shape, stride, dtype.itemsize)
        if not has_memory(storage, view):
            place = (StoragePlace(storage, dtype), offset, shape, stride)
            return freed_tensor, (*place, needs_gradients, hooks, dtype)
    arguments = (StoragePlace(storage, dtype), offset, shape, stride, needs_gradients, hooks)
    return torch._utils._rebuild_tensor_v2, arguments


def has_memory(storage: torch.UntypedStorage, view: StorageView) -> bool:
    """Whether a tensor has memory; one of which the storage was made smaller is refused.

    One that has none at all was freed for a while, as by DistributedDataParallel with mixed
    precision, and comes back like that.

    Args:
        storage: where it lies.
        view: which part of that it is.

    Raises:
        RefusedError: the storage ends before the tensor does; it could not be loaded.
    """
    needed = 0 if 0 in view.shape else view.reach[1]
    if 0 < storage.nbytes() < needed:
        raise RefusedError(
            f"its storage has {storage.nbytes()} bytes, but it needs {needed}: it was made smaller "
            "by untyped_storage().resize_(). Remedy: save it while it has its values"
        )
    return storage.nbytes() >= needed


def stored_elements(place: StoragePlace) -> tuple[object, int]:
    """The storage class that a pickle names, and how many elements the storage has."""
    storage_type, item_bytes = _typed_storage()[place.dtype]
    return storage_type, place.storage.nbytes() // item_bytes


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Whether a tensor is dense, on the CPU, and as it seems; its attributes may be anything."""
    return torch._C._dispatch_keys(tensor).raw_repr() == _ordinary_keys()


@functools.cache
def _ordinary_keys() -> int:
    """The dispatch keys of an ordinary tensor.

    All that makes a tensor special has a key: devices, sparse, nested and quantized layouts,
    conjugation, names, subclasses with a dispatch of their own, transforms of functions.
    """
    with torch.inference_mode(False):
        return torch._C._dispatch_keys(torch.empty(0, device="cpu")).raw_repr()


@functools.cache
def _typed_storage() -> dict[torch.dtype, tuple[object, int]]:
    """Storage class and size of the element types for which torch writes a typed storage."""
    names = torch.storage._dtype_to_storage_type_map()
    untyped = torch.storage._new_dtypes()
    classes = {d: getattr(torch, name, None) for d, name in names.items() if d not in untyped}
    return {d: (kind, d.itemsize) for d, kind in classes.items() if kind is not None}


def is_small(reduction: Any) -> bool:
    """Whether a tensor's reduction was made here, and its storage is not large."""
    parameter = reduction[1][0]
    first = parameter.reduction[1][0] if type(parameter) is Reduced else parameter
    return type(first) is StoragePlace and first.storage.nbytes() < LARGE


def view_of_large(reduction: Any) -> tuple[torch.UntypedStorage, StorageView] | None:
    """As :func:`view_of`, but None if the storage is not large."""
    found = view_of(reduction)
    return found if found is not None and found[0].nbytes() >= LARGE else None


def view_of(reduction: Any) -> tuple[torch.UntypedStorage, StorageView] | None:
    """The storage that a tensor lies in, and which part of it the tensor is.

    Args:
        reduction: what ``Tensor.__reduce_ex__`` gave, or what stands for it.

    Returns:
        None for a tensor of a small storage, and for what has none itself: a parameter that holds
        another tensor, which has been reduced as well, or what is made of others.
    """
    function, arguments = _of_tensor(reduction)
    if function not in _MADE_OF_A_STORAGE:
        return None
    place, offset, shape, stride = arguments[:4]
    if isinstance(place, StoragePlace):
        storage, dtype = place.storage, place.dtype
    elif isinstance(place, torch.UntypedStorage):
        storage, dtype = place, arguments[_DTYPE_OF_UNTYPED]
    else:
        storage, dtype = place._untyped_storage, place.dtype
    return storage, StorageView(offset, tuple(shape), tuple(stride), dtype.itemsize)


def _of_tensor(reduction: Any) -> tuple[Any, Any]:
    """Function and arguments that make the tensor of what has been reduced."""
    function, arguments = reduction[:2]
    if function is torch._tensor._rebuild_from_type_v2:
        function, _, arguments, _ = arguments
    elif isinstance(arguments[0], Reduced):  # a parameter, with its tensor inside
        function, arguments = arguments[0].reduction
    return function, arguments


_DTYPE_OF_UNTYPED = 6
"""The argument that says the element type, where the storage does not."""

_MADE_OF_A_STORAGE = (
    torch._utils._rebuild_tensor_v2,
    torch._utils._rebuild_tensor_v3,
    torch._utils._rebuild_qtensor,
)


def reduce_tensor(tensor: Any, protocol: int) -> Any:
    """What a tensor is reduced to; all that this calls is torch's, for torch.package to load it.

    The exception are tensors without memory, which torch.package cannot load anyway.

    torch would make a plain parameter of one whose class is derived from Parameter, give lazy ones
    the element type of the process that loads them, and forget that sparse ones need gradients.

    Args:
        tensor: of any class; one that has a reduction of its own is reduced by that.
        protocol: of the pickle.

    Raises:
        RefusedError: its storage is smaller than it; or has no memory, and it is quantized.
    """
    kind: Any = type(tensor)
    if kind is not Parameter and kind.__reduce_ex__ in _LOSE_THE_REST:
        if kind.__reduce__ is not object.__reduce__:
            return tensor.__reduce__()
        return _of_kind(kind, tensor)
    reduced = tensor.__reduce_ex__(protocol)
    if isinstance(reduced, tuple) and reduced[1] and not _has_memory(tensor, reduced):
        return _freed(reduced)
    if kind is torch.Tensor and _made_by(reduced) in _LOSE_GRADIENTS and tensor.requires_grad:
        return _needing_gradients(tensor, reduced, protocol)
    return reduced


def _of_kind(kind: type, tensor: torch.Tensor) -> Any:
    """The parts that any class of tensors can be made of again, without calling it."""
    state = torch._utils._get_obj_state(tensor)  # type: ignore[no-untyped-call]
    with torch._C.DisableTorchFunctionSubclass():  # lazy ones would give one of their own class
        data = tensor.data
        parts = (kind, data, tensor.requires_grad)
        if is_ordinary(data):  # else it is asked itself, but has no path that could be told
            place = (int(data.storage_offset()), tuple(data.shape), data.stride())
            has_memory(data.untyped_storage(), StorageView(*place, data.dtype.itemsize))
    return _RETYPED, (torch.Tensor._make_subclass, kind, parts, {} if state is None else state)


def _needing_gradients(tensor: Any, reduced: Any, protocol: int) -> Any:
    """As one that needs none, and the state that says so: what Tensor.__setstate__ takes."""
    function, arguments = tensor.detach().__reduce_ex__(protocol)
    if reduced[0] is _RETYPED:
        kind, state = reduced[1][1], reduced[1][3]
        function, arguments = _RETYPED, (function, kind, arguments, state)
    hooks: OrderedDict[int, Any] = OrderedDict()
    return function, arguments, (True, None, hooks)


def _has_memory(tensor: Any, reduced: Any) -> bool:
    found = view_of(reduced)
    is_packed = _made_by(reduced) is torch._utils._rebuild_qtensor and tensor.dtype in PACKED
    return found is None or is_packed or has_memory(*found)


def _freed(reduced: Any) -> Any:
    """The reduction of a tensor without memory, which says so."""
    function, arguments, *rest = reduced
    if function is _RETYPED:
        inner, kind, parts, state = arguments
        return _RETYPED, (freed_tensor, kind, _freed_parts(inner, parts), state), *rest
    return freed_tensor, _freed_parts(function, arguments), *rest


def _freed_parts(function: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of :func:`freed_tensor`, of those of torch's functions."""
    if function is torch._utils._rebuild_tensor_v3:
        return arguments
    if function is torch._utils._rebuild_qtensor:
        raise RefusedError("its memory was freed. Remedy: save it while it has its values")
    *place, requires_grad, hooks = arguments[:6]
    return (*place, requires_grad, hooks, place[0].dtype, *arguments[6:])


def _made_by(reduced: Any) -> Any:
    return reduced[1][0] if reduced[0] is _RETYPED else reduced[0]


_RETYPED = torch._tensor._rebuild_from_type_v2
_LOSE_THE_REST = (Parameter.__reduce_ex__, UninitializedParameter.__reduce_ex__)
_LOSE_GRADIENTS = (torch._utils._rebuild_sparse_tensor, torch._utils._rebuild_nested_tensor)


def state_last(reduced: Any) -> Any:
    """A tensor's reduction with its attributes as the state, not among the arguments.

    torch passes them to the function that makes the tensor. Where they lead back to it, as those of
    a weight that knows its module, pickle meets the tensor again before it was made, makes it with
    the attributes that were read by then, which are none, and drops the one that would have all.

    Args:
        reduced: what the tensor is reduced to.
    """
    if type(reduced) is not tuple or len(reduced) != 2 or not reduced[1]:
        return reduced
    function, (*arguments, state) = reduced
    if function is torch._utils._rebuild_parameter_with_state:
        function = torch._utils._rebuild_parameter
    elif function is torch._tensor._rebuild_from_type_v2 and not _sets_itself(arguments[1]):
        arguments.append({})
    else:
        return reduced
    if _leads_nowhere(state):
        return reduced
    return function, tuple(arguments), state, None, None, _SET_STATE


def _sets_itself(kind: type) -> bool:
    """Whether a class has a say in its state, which torch hands to it when the tensor is made."""
    return kind.__setstate__ is not torch.Tensor.__setstate__  # type: ignore[attr-defined]


def _leads_nowhere(state: Any) -> bool:
    return type(state) is dict and all(type(value) in _ATOMS for value in state.values())


_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device})
_SET_STATE = torch._utils._set_obj_state


_MARKS = {"_dynamo_static_input_type": "unguarded"}
"""Attributes, and the values that nobody but torch.compile sets."""


def without_marks(reduced: Any) -> Any:
    """A tensor's reduction without the marks that torch.compile has left on it.

    It marks the parameters of a module when it compiles it; not if what another module of the same
    kind was compiled to can be used again.
    """
    if not isinstance(reduced, tuple) or type(reduced[1]) is not tuple or not reduced[1]:
        return reduced
    function, arguments, *rest = reduced
    state = arguments[-1]
    if type(state) is not dict or not any(state.get(n) == mark for n, mark in _MARKS.items()):
        return reduced
    kept = {name: value for name, value in state.items() if value != _MARKS.get(name, _NO_MARK)}
    if not kept and function is torch._utils._rebuild_parameter_with_state:
        return torch._utils._rebuild_parameter, arguments[:-1], *rest
    return function, (*arguments[:-1], kept), *rest


_NO_MARK = object()


_Id = tuple[object, ...]


class StorageIds:
    """Makes the persistent ids of storages.

    Args:
        add: stores the bytes of one, and returns its key.
    """

    def __init__(self, add: Callable[[torch.UntypedStorage], str]) -> None:
        self._add = add

    def handler(self, kind: type) -> Callable[[Any], _Id] | None:
        """What makes the persistent id of objects of a type; None if those are no storages."""
        if kind is StoragePlace:
            return self._of_place
        if issubclass(kind, torch.storage.TypedStorage):
            return self._of_typed
        return self._of_untyped if issubclass(kind, torch.UntypedStorage) else None

    def _of_place(self, place: StoragePlace) -> _Id:
        return self._of(place.storage, *stored_elements(place))

    def _of_typed(self, typed: Any) -> _Id:
        storage_type = getattr(torch, typed._pickle_storage_type())
        return self._of(typed._untyped_storage, storage_type, typed._size())

    def _of_untyped(self, storage: torch.UntypedStorage) -> _Id:
        return self._of(storage, torch.UntypedStorage, storage.nbytes())

    def _of(self, storage: torch.UntypedStorage, storage_type: object, size: int) -> _Id:
        key = self._add(storage)
        return ("storage", storage_type, key, torch.serialization.location_tag(storage), size)
