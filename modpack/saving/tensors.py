"""Reduction of tensors, and writing of their storages, each one once.

torch handles every kind of tensor, and creates three objects for its storage and another tensor for
a parameter. Nearly all tensors are ordinary: dense, in CPU memory, without attributes. Their
reductions are computed here in a third of the time, with identical output. Other tensors are
reduced by torch, except for properties that torch would silently lose.
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
from modpack.pickling.tensor_loading import PACKED, freed_tensor, storage_record
from modpack.saving.base import RefusedError
from modpack.saving.pickle_edits import ReducedObject

ORDINARY = (torch.Tensor, Parameter)
"""Tensor types that may be ordinary; a subclass may customize everything."""
_RETYPED = torch._tensor._rebuild_from_type_v2
_ON_A_STORAGE = (
    torch._utils._rebuild_tensor_v2,
    torch._utils._rebuild_tensor_v3,
    torch._utils._rebuild_qtensor,
)
_LOSE_SUBCLASS = (Parameter.__reduce_ex__, UninitializedParameter.__reduce_ex__)
_LOSE_GRADIENTS = (torch._utils._rebuild_sparse_tensor, torch._utils._rebuild_nested_tensor)
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device})
COMPILE_MARK = ("_dynamo_static_input_type", "unguarded")
"""An attribute and its value that only torch.compile sets."""


class StorageReference:
    """A placeholder for a typed storage in a reduction.

    Args:
        storage: The storage.
        dtype: The type of its elements.
    """

    __slots__ = ("dtype", "storage")

    def __init__(self, storage: torch.UntypedStorage, dtype: torch.dtype) -> None:
        self.storage = storage
        self.dtype = dtype


def ordinary_reduction(tensor: Any) -> tuple[Any, ...] | None:
    """Return torch's reduction of a tensor, with placeholders; None to have torch reduce it."""
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return None  # a mode intercepts operations on tensors, and may change them
    if type(tensor) not in ORDINARY or tensor.__dict__ or tensor._backward_hooks:
        return None
    if not is_ordinary(tensor) or tensor.dtype not in _typed_storage():
        return None
    needs_gradients = tensor.requires_grad
    if type(tensor) is not Parameter:
        return _reduction(tensor, needs_gradients)
    hooks: OrderedDict[int, Any] = OrderedDict()  # an argument that torch leaves empty
    arguments = (ReducedObject(_reduction(tensor, False)), needs_gradients, hooks)
    return torch._utils._rebuild_parameter, arguments


def _reduction(tensor: torch.Tensor, needs_gradients: bool) -> tuple[Any, ...]:
    hooks: OrderedDict[int, Any] = OrderedDict()
    storage, dtype = tensor.untyped_storage(), tensor.dtype
    offset, shape, stride = int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride()
    # A tensor that fills its storage, as most do, certainly has its memory.
    if offset or tensor.nbytes != storage.nbytes() or not tensor.is_contiguous():
        view = StorageView(offset, shape, stride, dtype.itemsize)
        if not has_memory(storage, view):
            parts = (StorageReference(storage, dtype), offset, shape, stride)
            return freed_tensor, (*parts, needs_gradients, hooks, dtype)
    arguments = (StorageReference(storage, dtype), offset, shape, stride, needs_gradients, hooks)
    return torch._utils._rebuild_tensor_v2, arguments


def has_memory(storage: torch.UntypedStorage, view: StorageView) -> bool:
    """Return whether a tensor has memory; raise if it has too little.

    A tensor without any was freed temporarily, for example by DistributedDataParallel with mixed
    precision. It is restored in that state.

    Args:
        storage: The tensor's storage.
        view: The part of the storage that it uses.

    Raises:
        RefusedError: If the tensor extends beyond its storage; it could not be loaded.
    """
    needed = 0 if 0 in view.shape else view.reach[1]
    if 0 < storage.nbytes() < needed:
        raise RefusedError(
            f"the tensor needs {needed} bytes, but its storage was reduced to {storage.nbytes()} "
            "bytes by untyped_storage().resize_()",
            hint="Save the tensor while it has its values.",
        )
    return storage.nbytes() >= needed


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is dense and in CPU memory; its attributes do not matter."""
    return torch._C._dispatch_keys(tensor).raw_repr() == _ordinary_keys()


@functools.cache
def _ordinary_keys() -> int:
    """Return the dispatch keys of an ordinary tensor.

    Everything that makes a tensor special has a key: devices, sparse, nested, and quantized
    layouts, conjugation, names, subclasses with their own dispatch, and function transforms.
    """
    with torch.inference_mode(False):
        return torch._C._dispatch_keys(torch.empty(0, device="cpu")).raw_repr()


@functools.cache
def _typed_storage() -> dict[torch.dtype, tuple[object, int]]:
    """Return storage class and element size for each dtype that torch writes as typed storage."""
    names = torch.storage._dtype_to_storage_type_map()
    untyped = torch.storage._new_dtypes()
    classes = {d: getattr(torch, name, None) for d, name in names.items() if d not in untyped}
    return {d: (kind, d.itemsize) for d, kind in classes.items() if kind is not None}


def find_large_view(reduction: Any) -> tuple[torch.UntypedStorage, StorageView] | None:
    """Return the result of :func:`find_view` if the storage is large, else None."""
    found = find_view(reduction)
    return found if found is not None and found[0].nbytes() >= LARGE else None


def find_view(reduction: Any) -> tuple[torch.UntypedStorage, StorageView] | None:
    """Return a tensor's storage, and the part of it that the tensor uses.

    Args:
        reduction: The result of ``Tensor.__reduce_ex__`` or :func:`ordinary_reduction`.

    Returns:
        None if the tensor has no storage of its own: a parameter that contains another tensor,
        which is reduced separately, or a tensor made of others.
    """
    function, arguments = reduction[:2]
    if function is _RETYPED:
        function, _, arguments, _ = arguments
    elif isinstance(arguments[0], ReducedObject):  # a parameter that contains its tensor
        function, arguments = arguments[0].reduction
    if function not in _ON_A_STORAGE:
        return None
    owner, offset, shape, stride = arguments[:4]
    if isinstance(owner, StorageReference):
        storage, dtype = owner.storage, owner.dtype
    elif isinstance(owner, torch.UntypedStorage):
        storage, dtype = owner, arguments[6]
    else:
        storage, dtype = owner._untyped_storage, owner.dtype
    return storage, StorageView(offset, tuple(shape), tuple(stride), dtype.itemsize)


def reduce_tensor(tensor: Any, protocol: int) -> Any:
    """Return a tensor's reduction, which torch.package can load.

    It calls only torch's functions. Tensors without memory are an exception; torch.package cannot
    load them anyway.

    torch alone would turn parameters of a derived class into plain ones, give lazy parameters the
    dtype of the loading process, and lose ``requires_grad`` of sparse tensors.

    Args:
        tensor: A tensor of any class. A class's own reduction takes precedence.
        protocol: The pickle protocol.

    Raises:
        RefusedError: If its storage is too small, or if it is quantized and has no memory.
    """
    kind: Any = type(tensor)
    if kind is not Parameter and kind.__reduce_ex__ in _LOSE_SUBCLASS:
        if kind.__reduce__ is not object.__reduce__:
            return tensor.__reduce__()
        return _reduce_subclass(kind, tensor)
    reduced = tensor.__reduce_ex__(protocol)
    if isinstance(reduced, tuple) and reduced[1] and not _has_memory(tensor, reduced):
        return _freed(reduced)
    if kind is torch.Tensor and _made_by(reduced) in _LOSE_GRADIENTS and tensor.requires_grad:
        return _reduce_requiring_grad(tensor, reduced, protocol)
    return reduced


def _reduce_subclass(kind: type, tensor: torch.Tensor) -> Any:
    """Return a reduction that re-creates a tensor of any class without calling the class."""
    state = torch._utils._get_obj_state(tensor)  # type: ignore[no-untyped-call]
    with torch._C.DisableTorchFunctionSubclass():  # lazy ones would return their own class
        data = tensor.data
        parts = (kind, data, tensor.requires_grad)
        if is_ordinary(data):  # others check themselves, but an error would lack the path
            extent = (int(data.storage_offset()), tuple(data.shape), data.stride())
            has_memory(data.untyped_storage(), StorageView(*extent, data.dtype.itemsize))
    return _RETYPED, (torch.Tensor._make_subclass, kind, parts, {} if state is None else state)


def _reduce_requiring_grad(tensor: Any, reduced: Any, protocol: int) -> Any:
    """Reduce a detached tensor, and set ``requires_grad`` through ``Tensor.__setstate__``."""
    function, arguments = tensor.detach().__reduce_ex__(protocol)
    if reduced[0] is _RETYPED:
        kind, state = reduced[1][1], reduced[1][3]
        function, arguments = _RETYPED, (function, kind, arguments, state)
    hooks: OrderedDict[int, Any] = OrderedDict()
    return function, arguments, (True, None, hooks)


def _has_memory(tensor: Any, reduced: Any) -> bool:
    found = find_view(reduced)
    is_packed = _made_by(reduced) is torch._utils._rebuild_qtensor and tensor.dtype in PACKED
    return found is None or is_packed or has_memory(*found)


def _freed(reduced: Any) -> Any:
    """Return the reduction of a tensor without memory."""
    function, arguments, *rest = reduced
    if function is _RETYPED:
        inner, kind, parts, state = arguments
        return _RETYPED, (freed_tensor, kind, _freed_parts(inner, parts), state), *rest
    return freed_tensor, _freed_parts(function, arguments), *rest


def _freed_parts(function: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Convert the arguments of one of torch's functions to those of :func:`freed_tensor`."""
    if function is torch._utils._rebuild_tensor_v3:
        return arguments
    if function is torch._utils._rebuild_qtensor:
        raise RefusedError(
            "the memory of the tensor was freed", hint="Save the tensor while it has its values."
        )
    *view, requires_grad, hooks = arguments[:6]
    return (*view, requires_grad, hooks, view[0].dtype, *arguments[6:])


def _made_by(reduced: Any) -> Any:
    return reduced[1][0] if reduced[0] is _RETYPED else reduced[0]


def move_state_last(reduced: Any) -> Any:
    """Move a tensor's attributes from the arguments of its reduction to the state.

    torch passes the attributes as arguments of the function that creates the tensor. If an
    attribute refers back to the tensor, as in a weight that knows its module, pickle reaches the
    tensor a second time while it writes those arguments. The pickle would then contain the second
    tensor, which has no attributes, and drop the first. Other reductions are returned unchanged.

    Args:
        reduced: The tensor's reduction.
    """
    if type(reduced) is not tuple or len(reduced) != 2 or not reduced[1]:
        return reduced
    function, (*arguments, state) = reduced
    if function is torch._utils._rebuild_parameter_with_state:
        function = torch._utils._rebuild_parameter
    elif function is _RETYPED and arguments[1].__setstate__ is torch.Tensor.__setstate__:
        arguments.append({})
    else:  # or the class sets its own state, which torch passes when it creates the tensor
        return reduced
    if type(state) is dict and all(type(value) in _ATOMS for value in state.values()):
        return reduced  # no attribute refers to another object
    return function, tuple(arguments), state, None, None, torch._utils._set_obj_state


def strip_compile_marks(reduced: Any) -> Any:
    """Remove the marks of torch.compile from a tensor's reduction.

    torch.compile marks the parameters of a module that it compiles, but not if it reuses the
    result for another module of the same kind. The output must not depend on that.
    """
    if not isinstance(reduced, tuple) or type(reduced[1]) is not tuple or not reduced[1]:
        return reduced
    function, arguments, *rest = reduced
    state = arguments[-1]
    name, mark = COMPILE_MARK
    if type(state) is not dict or state.get(name) != mark:
        return reduced
    kept = {other: value for other, value in state.items() if other != name}
    # torch uses this function only for parameters with attributes.
    if not kept and function is torch._utils._rebuild_parameter_with_state:
        return torch._utils._rebuild_parameter, arguments[:-1], *rest
    return function, (*arguments[:-1], kept), *rest


_Parts = tuple[torch.UntypedStorage, object, int]
"""A storage, the storage class that a pickle names, and the number of elements in that class."""


def storage_parts(kind: type) -> Callable[[Any], _Parts] | None:
    """Return a function that describes storages of a type, or None if it is not a storage type."""
    if kind is StorageReference:
        return _reference_parts
    if issubclass(kind, torch.storage.TypedStorage):
        return lambda typed: (
            typed._untyped_storage,
            getattr(torch, typed._pickle_storage_type()),
            typed._size(),
        )
    if issubclass(kind, torch.UntypedStorage):
        return lambda storage: (storage, torch.UntypedStorage, storage.nbytes())
    return None


def _reference_parts(reference: StorageReference) -> _Parts:
    storage_type, item_bytes = _typed_storage()[reference.dtype]
    return reference.storage, storage_type, reference.storage.nbytes() // item_bytes


def storage_bytes(storage: torch.UntypedStorage) -> memoryview:
    """Return a storage's bytes: its own memory if it is on the CPU, else a copy."""
    on_cpu = storage if storage.device.type == "cpu" else storage.cpu()  # type: ignore[no-untyped-call]
    size = on_cpu.nbytes()
    if size == 0:
        return memoryview(b"")
    memory = _bytes_of_size(size).from_address(on_cpu.data_ptr())
    memory._storage = on_cpu  # type: ignore[attr-defined]  # keeps the memory alive
    return memoryview(memory).cast("B")


@functools.lru_cache(maxsize=128)
def _bytes_of_size(size: int) -> type[ctypes.Array[ctypes.c_char]]:
    """Return an array type, cached because creating it takes ten times as long as using it."""
    return ctypes.c_char * size


class StorageSink(Protocol):
    """The methods of an archive writer that saving storages requires."""

    def write_storage(self, name: str, data: memoryview) -> None: ...

    def digest_of(self, name: str) -> str | None: ...


class StorageSaver:
    """Writes each storage once, and again if it has changed when the next object is saved.

    Args:
        sink: Receives the bytes.

    Attributes:
        large: The keys of storages that are large enough to report unused parts.
    """

    def __init__(self, sink: StorageSink) -> None:
        self.large: set[str] = set()
        self._sink = sink
        self._keys: dict[int, tuple[torch.UntypedStorage, str, int]] = {}
        self._count = 0
        self._generation = 0

    def next_object(self) -> None:
        """Start another saved object: known storages may have changed since the last one."""
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
        """Return the key of a storage that belongs to the current object, else None."""
        known = self._keys.get(storage._cdata)
        return known[1] if known is not None and known[2] == self._generation else None

    @property
    def generation(self) -> int:
        """The number of objects started so far."""
        return self._generation

    def restore_contents(self, since: int, read: Callable[[str], Iterable[bytes]]) -> None:
        """Restore the contents that storages had when they were written.

        Args:
            since: A generation; later ones are restored.
            read: Returns the content of a record, in chunks.
        """
        for storage, key, generation in self._keys.values():
            if generation > since:
                _overwrite(storage, read(storage_record(key)))

    def _unchanged(self, known: tuple[torch.UntypedStorage, str, int]) -> bool:
        storage, key, _ = known
        digest = self._sink.digest_of(storage_record(key))
        # Without a digest, because a plan writes nothing, it counts as unchanged.
        return not digest or digest == hashlib.sha256(storage_bytes(storage)).hexdigest()


def _overwrite(storage: torch.UntypedStorage, content: Iterable[bytes]) -> None:
    """Overwrite a storage's content, without touching bytes that are equal already."""
    memory, position, has_changed = storage_bytes(storage), 0, False
    for chunk in content:
        part = memory[position : position + len(chunk)]
        position += len(chunk)
        if bytes(part) != chunk:  # much faster than comparing memoryviews
            part[:] = chunk
            has_changed = True
    if has_changed and storage.device.type != "cpu":
        owner: Any = memory.obj
        storage.copy_(owner._storage)
