"""Tensors as they are saved: what they are reduced to, and their storages, each written once.

torch asks each tensor for all that tensors may be, makes three objects for its storage, and for a
parameter another tensor. Nearly all tensors are ordinary: dense, in the memory of the CPU, without
attributes. Their reductions are made here in a third of the time; what is written is the same.
Reductions of the others are torch's own, but for what those would leave behind without a word.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch.nn import Parameter, UninitializedParameter

from modpack.core.process import advance
from modpack.core.tensors import LARGE, StorageView
from modpack.pickling.base import RefusedError
from modpack.pickling.pickle_edits import ReducedObject
from modpack.pickling.tensor_loading import PACKED, freed_tensor, storage_record

ORDINARY = (torch.Tensor, Parameter)
"""The types of tensors that may be ordinary; a class derived from them has a say in everything."""
_RETYPED = torch._tensor._rebuild_from_type_v2
_MADE_OF_A_STORAGE = (
    torch._utils._rebuild_tensor_v2,
    torch._utils._rebuild_tensor_v3,
    torch._utils._rebuild_qtensor,
)
_LOSE_THE_REST = (Parameter.__reduce_ex__, UninitializedParameter.__reduce_ex__)
_LOSE_GRADIENTS = (torch._utils._rebuild_sparse_tensor, torch._utils._rebuild_nested_tensor)
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device})
_MARK = ("_dynamo_static_input_type", "unguarded")
"""An attribute, and a value that nobody but torch.compile gives it."""


class StorageReference:
    """Stands for a typed storage in a reduction.

    Args:
        storage: the storage.
        dtype: the type of its elements.
    """

    __slots__ = ("dtype", "storage")

    def __init__(self, storage: torch.UntypedStorage, dtype: torch.dtype) -> None:
        self.storage = storage
        self.dtype = dtype


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
    arguments = (ReducedObject(_reduction(tensor, False)), needs_gradients, hooks)
    return torch._utils._rebuild_parameter, arguments


def _reduction(tensor: torch.Tensor, needs_gradients: bool) -> tuple[Any, ...]:
    hooks: OrderedDict[int, Any] = OrderedDict()
    storage, dtype = tensor.untyped_storage(), tensor.dtype
    offset, shape, stride = int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride()
    if offset or tensor.nbytes != storage.nbytes() or not tensor.is_contiguous():
        view = StorageView(offset, shape, stride, dtype.itemsize)
        if not has_memory(storage, view):
            place = (StorageReference(storage, dtype), offset, shape, stride)
            return freed_tensor, (*place, needs_gradients, hooks, dtype)
    arguments = (StorageReference(storage, dtype), offset, shape, stride, needs_gradients, hooks)
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
    function, arguments = reduction[:2]
    if function is _RETYPED:
        function, _, arguments, _ = arguments
    elif isinstance(arguments[0], ReducedObject):  # a parameter, with its tensor inside
        function, arguments = arguments[0].reduction
    if function not in _MADE_OF_A_STORAGE:
        return None
    place, offset, shape, stride = arguments[:4]
    if isinstance(place, StorageReference):
        storage, dtype = place.storage, place.dtype
    elif isinstance(place, torch.UntypedStorage):
        storage, dtype = place, arguments[6]
    else:
        storage, dtype = place._untyped_storage, place.dtype
    return storage, StorageView(offset, tuple(shape), tuple(stride), dtype.itemsize)


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
    elif function is _RETYPED and arguments[1].__setstate__ is torch.Tensor.__setstate__:
        arguments.append({})
    else:  # or a class has a say in its state, which torch hands to it when the tensor is made
        return reduced
    if type(state) is dict and all(type(value) in _ATOMS for value in state.values()):
        return reduced  # no attribute leads anywhere
    return function, tuple(arguments), state, None, None, torch._utils._set_obj_state


def without_marks(reduced: Any) -> Any:
    """A tensor's reduction without the marks that torch.compile has left on it.

    It marks the parameters of a module when it compiles it; not if what another module of the same
    kind was compiled to can be used again.
    """
    if not isinstance(reduced, tuple) or type(reduced[1]) is not tuple or not reduced[1]:
        return reduced
    function, arguments, *rest = reduced
    state = arguments[-1]
    name, mark = _MARK
    if type(state) is not dict or state.get(name) != mark:
        return reduced
    kept = {other: value for other, value in state.items() if other != name}
    if not kept and function is torch._utils._rebuild_parameter_with_state:
        return torch._utils._rebuild_parameter, arguments[:-1], *rest
    return function, (*arguments[:-1], kept), *rest


_Parts = tuple[torch.UntypedStorage, object, int]
"""A storage, the storage class that a pickle names, and how many elements of that it has."""


def storage_parts(kind: type) -> Callable[[Any], _Parts] | None:
    """For a type of storages, what a pickle says of one; None for any other type."""
    if kind is StorageReference:
        return _parts_of_place
    if issubclass(kind, torch.storage.TypedStorage):
        return lambda typed: (
            typed._untyped_storage,
            getattr(torch, typed._pickle_storage_type()),
            typed._size(),
        )
    if issubclass(kind, torch.UntypedStorage):
        return lambda storage: (storage, torch.UntypedStorage, storage.nbytes())
    return None


def _parts_of_place(place: StorageReference) -> _Parts:
    storage_type, item_bytes = _typed_storage()[place.dtype]
    return place.storage, storage_type, place.storage.nbytes() // item_bytes


def storage_bytes(storage: torch.UntypedStorage) -> memoryview:
    """A storage's bytes; its own memory where that is the CPU's, else a copy."""
    on_cpu = storage if storage.device.type == "cpu" else storage.cpu()  # type: ignore[no-untyped-call]
    size = on_cpu.nbytes()
    if size == 0:
        return memoryview(b"")
    memory = _bytes_of_size(size).from_address(on_cpu.data_ptr())
    memory._storage = on_cpu  # type: ignore[attr-defined]  # keeps the memory alive
    return memoryview(memory).cast("B")


@functools.lru_cache(maxsize=128)
def _bytes_of_size(size: int) -> type[ctypes.Array[ctypes.c_char]]:
    """Making the type takes ten times as long as using it, and the next save asks for the same."""
    return ctypes.c_char * size


class StorageSink(Protocol):
    """What the archive's writer offers to storages."""

    def write_storage(self, name: str, data: memoryview) -> None: ...

    def digest_of(self, name: str) -> str | None: ...


class StorageSaver:
    """Writes each storage once, and again if it changed between two saved objects.

    Args:
        sink: where the bytes go.

    Attributes:
        large: the keys of those that are so large that it matters what of them is used.
    """

    def __init__(self, sink: StorageSink) -> None:
        self.large: set[str] = set()
        self._sink = sink
        self._keys: dict[int, tuple[torch.UntypedStorage, str, int]] = {}
        self._count = 0
        self._generation = 0

    def next_object(self) -> None:
        """Start another saved object: storages seen before may have other contents by now."""
        self._generation += 1

    def add(self, storage: torch.UntypedStorage) -> str:
        """Write a storage if it is new, and return its key."""
        known = self._keys.get(storage._cdata)
        if known is not None and (known[2] == self._generation or self._unchanged(known)):
            self._keys[storage._cdata] = (storage, known[1], self._generation)
            return known[1]
        key = str(self._count)
        self._count += 1
        self._sink.write_storage(storage_record(key), storage_bytes(storage))
        size = storage.nbytes()
        if size >= LARGE:
            self.large.add(key)
        advance(size)
        self._keys[storage._cdata] = (storage, key, self._generation)
        return key

    def key_of(self, storage: torch.UntypedStorage) -> str | None:
        """The key of a storage that was stored with the present object; None if it was not."""
        known = self._keys.get(storage._cdata)
        return known[1] if known is not None and known[2] == self._generation else None

    @property
    def generation(self) -> int:
        """How many objects were started by now."""
        return self._generation

    def put_back(self, since: int, read: Callable[[str], Iterable[bytes]]) -> None:
        """Give storages that have changed the content again with which they were written.

        Args:
            since: those that were written, or seen again, after so many objects.
            read: the content of a record, in chunks.
        """
        for storage, key, generation in self._keys.values():
            if generation > since:
                _overwrite(storage, read(storage_record(key)))

    def _unchanged(self, known: tuple[torch.UntypedStorage, str, int]) -> bool:
        storage, key, _ = known
        digest = self._sink.digest_of(storage_record(key))
        return not digest or digest == hashlib.sha256(storage_bytes(storage)).hexdigest()


def _overwrite(storage: torch.UntypedStorage, content: Iterable[bytes]) -> None:
    """Give a storage another content, and touch nothing that is as it should be already."""
    now, position, has_changed = storage_bytes(storage), 0, False
    for chunk in content:
        place = now[position : position + len(chunk)]
        position += len(chunk)
        if bytes(place) != chunk:  # far faster than comparing views
            place[:] = chunk
            has_changed = True
    if has_changed and storage.device.type != "cpu":
        owner: Any = now.obj
        storage.copy_(owner._storage)
