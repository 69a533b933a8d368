"""Ours in place of torch's functions that pickles call to make tensors again.

Reductions of ordinary tensors, made without the detours that torch takes.

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
from modpack.errors import ModpackError
from modpack.pickling.base import RefusedError
from modpack.pickling.rebuild import named_in_packages
from modpack.pickling.storages import unmoved


class UnsoundTensorError(ModpackError):
    """A pickle describes a tensor that cannot be: its storage ends before it does, for instance."""


def rebuilding(is_fake: bool) -> Callable[[Any], Any]:
    """What to call in place of what a pickle names.

    Args:
        is_fake: whether a FakeTensorMode is on.
    """
    pairs = _OURS_OF_FAKES if is_fake else _OURS

    def ours(named: Any) -> Any:
        return next((own for theirs, own in pairs if named is theirs), named)

    return ours


def _retyped(function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """A tensor of a class; a leaf stays one.

    torch's own function makes a view, which is computed if what it shows needs gradients.
    """
    made = function(*arguments)
    is_leaf = type(made) is torch.Tensor and made.requires_grad and made.is_leaf
    if is_leaf and kind is not torch.Tensor:
        made = _MAKE_SUBCLASS(kind, made, True)
    return torch._tensor._rebuild_from_type_v2(_itself, kind, (made,), state)  # type: ignore[no-untyped-call]


def _retyped_fake(function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """What torch.load makes of a parameter; a fake tensor cannot be of another class, or lazy."""
    is_lazy = issubclass(kind, torch.nn.UninitializedParameter)
    if function == _MAKE_SUBCLASS and issubclass(kind, torch.nn.Parameter) and not is_lazy:
        _, data, requires_grad = arguments
        parts = (data, requires_grad, OrderedDict[int, Any](), state)
        return torch._utils._rebuild_parameter_with_state(*parts)  # type: ignore[no-untyped-call]
    return torch._tensor._rebuild_from_type_v2(function, kind, arguments, state)  # type: ignore[no-untyped-call]


def _itself(made: Any) -> Any:
    return made


@named_in_packages
def freed_tensor(
    storage: Any,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: bool,
    hooks: Any,
    dtype: torch.dtype,
    metadata: Any = None,
) -> torch.Tensor:
    """A tensor whose memory was freed when it was saved, and still is: pickles name this function.

    torch looks at no address before it reads or writes there. So whoever restricts what pickles may
    name has to allow this one.
    """
    typed = _typed(storage)
    memory = typed._untyped_storage
    if memory.nbytes():
        raise UnsoundTensorError(
            f"a tensor should have no memory, but its storage has {memory.nbytes()} bytes"
        )
    arguments = (typed, offset, shape, strides, False, hooks, dtype, metadata)
    tensor = _or_unsound(torch._utils._rebuild_tensor_v3)(*arguments)
    memory.resize_(0)
    tensor.requires_grad = requires_grad
    return tensor  # type: ignore[no-any-return]


def _typed(storage: Any) -> Any:
    """A storage as torch's functions take it: they look for the untyped one inside."""
    if not isinstance(storage, torch.UntypedStorage):
        return storage
    return torch.storage.TypedStorage(  # type: ignore[no-untyped-call]
        wrap_storage=storage, dtype=torch.uint8, _internal=True
    )


def _or_unsound(function: Any) -> Any:
    """A function of torch's; what it raises tells what a pickle has wrong."""

    @functools.wraps(function)
    def tried(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except OF_TORCH as failure:
            raise unsound(failure) from failure

    return tried


def unsound(failure: Exception) -> UnsoundTensorError:
    """The error for what torch raised; it tells what a pickle has wrong."""
    told = f"{type(failure).__name__}: {failure}".encode("unicode_escape").decode()
    return UnsoundTensorError(f"the tensor that it describes cannot be made ({told:.400})")


def _require_room(
    storage: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Refuse what torch would make a storage larger for, with whatever lies in memory there."""
    size = storage._untyped_storage.nbytes()
    needed = StorageView(offset, tuple(shape), tuple(strides), dtype.itemsize).reach[1]
    if needed <= size or 0 in shape:
        return
    freed = "" if size else ". Remedy: if it was freed before it was saved, export it again"
    raise UnsoundTensorError(f"a tensor needs {needed} bytes, but its storage has {size}{freed}")


def _rebuild_of_untyped(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, *more: Any
) -> torch.Tensor:
    """As torch's own function, which looks for the storage inside of the one that it is given."""
    typed = _typed(storage)
    _require_room(typed, offset, shape, strides, more[0])
    arguments = (typed, offset, shape, strides, grad, hooks, *more)
    return torch._utils._rebuild_tensor_v3(*arguments)  # type: ignore[no-any-return, no-untyped-call]


def _rebuild_quantized(
    storage: Any, offset: Any, shape: Any, strides: Any, *more: Any
) -> torch.Tensor:
    """As torch's own function, which takes the memory before it looks at the storage."""
    if storage.dtype not in PACKED:
        _require_room(storage, offset, shape, strides, storage.dtype)
    arguments = (storage, offset, shape, strides, *more)
    return torch._utils._rebuild_qtensor(*arguments)  # type: ignore[no-any-return, no-untyped-call]


def _rebuild_old(storage: Any, offset: Any, shape: Any, strides: Any) -> torch.Tensor:
    """A tensor as pickles of torch 0.3 describe it."""
    return _rebuild_tensor(storage, offset, shape, strides, False, OrderedDict())


def _rebuild_sparse(layout: Any, data: Any) -> torch.Tensor:
    """As torch's own function, and with indices that lie inside; torch does not look at them.

    It can be told to look at all that were loaded, but lists them for all threads together. That
    list is left as it was.
    """
    made: torch.Tensor = unmoved(torch._utils._rebuild_sparse_tensor)(layout, data)
    listed = torch._utils._sparse_tensors_to_validate
    listed[:] = [each for each in listed if each is not made]
    if made.is_meta:
        return made
    if layout is torch.sparse_coo:
        parts = (made._indices(), made._values(), made.size(), made.is_coalesced())
        torch._validate_sparse_coo_tensor_args(*parts, **_unpinned())
        return made
    by_rows = layout in (torch.sparse_csr, torch.sparse_bsr)
    compressed = made.crow_indices() if by_rows else made.ccol_indices()
    plain = made.col_indices() if by_rows else made.row_indices()
    first = compressed.dim()  # of the values' dimensions that blocks have
    if made.layout in _OF_BLOCKS and 0 in made.values().shape[first : first + 2]:
        raise UnsoundTensorError("a sparse tensor has blocks of no elements")  # torch divides by it
    compressed_parts = (compressed, plain, made.values(), made.size(), made.layout)
    torch._validate_sparse_compressed_tensor_args(*compressed_parts, **_unpinned())
    return made


def _rebuild_nested(buffer: Any, sizes: Any, strides: Any, offsets: Any) -> torch.Tensor:
    """As torch's own function, which does not look whether its parts lie inside of the buffer."""
    count = buffer.numel()
    is_row = buffer.dim() == 1 and buffer.is_contiguous()
    if not is_row or sizes.shape != strides.shape or len(offsets) != len(sizes):
        raise UnsoundTensorError("a nested tensor has parts of different number")
    for shape, steps, offset in zip(
        sizes.tolist(), strides.tolist(), offsets.tolist(), strict=True
    ):
        reach = StorageView(offset, tuple(shape), tuple(steps), 1).reach
        if 0 not in shape and not (reach[0] >= 0 and reach[1] <= count):
            raise UnsoundTensorError(f"a nested tensor needs {reach[1]} elements of {count}")
    parts = (buffer, sizes, strides, offsets)
    return torch._utils._rebuild_nested_tensor(*parts)  # type: ignore[no-any-return, no-untyped-call]


@functools.cache
def _unpinned() -> dict[str, Any]:
    """That it does not matter where the parts lie; older versions of torch do not ask."""
    schema = torch.ops.aten._validate_sparse_coo_tensor_args.default._schema
    return {"check_pinning": False} if "check_pinning" in str(schema) else {}


def _rebuild_tensor(
    storage: Any,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: bool,
    hooks: Any,
    metadata: Any = None,
) -> torch.Tensor:
    """A tensor on a storage, when no FakeTensorMode is on.

    torch's own function looks for one again and again, which takes as long as all the rest. It
    makes a storage larger that is too small; of one that is mapped, torch itself says that it is.
    """
    try:
        memory = storage._untyped_storage
        if memory.resizable():
            _require_room(storage, offset, shape, strides, storage.dtype)
        tensor: Any = torch.empty((0,), dtype=storage.dtype, device=memory.device)
        tensor.set_(memory, offset, shape, strides)
        tensor.requires_grad = requires_grad
        if metadata:
            torch._utils.set_tensor_metadata(tensor, metadata)  # type: ignore[no-untyped-call]
        tensor._backward_hooks = hooks
    except OF_TORCH as failure:
        if isinstance(storage, torch.storage.TypedStorage):
            _or_unsound(_require_room)(storage, offset, shape, strides, storage.dtype)
        raise unsound(failure) from failure
    return tensor  # type: ignore[no-any-return]


PACKED = (torch.quint4x2, torch.quint2x4)
"""Element types of which several make a byte."""

OF_TORCH = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What torch raises for arguments that no tensor can be made of."""

_OF_BLOCKS = (torch.sparse_bsr, torch.sparse_bsc)
_MAKE_SUBCLASS = torch.Tensor._make_subclass
_SPARSE = torch._utils._rebuild_sparse_tensor
_OLD = torch._utils._rebuild_tensor
_UNTYPED = (torch._utils._rebuild_tensor_v3, _or_unsound(_rebuild_of_untyped))
_OURS = (
    (torch._utils._rebuild_tensor_v2, _rebuild_tensor),
    (torch._tensor._rebuild_from_type_v2, _retyped),
    _UNTYPED,
    (_SPARSE, _or_unsound(_rebuild_sparse)),
    (torch._utils._rebuild_qtensor, _or_unsound(_rebuild_quantized)),
    (torch._utils._rebuild_nested_tensor, _or_unsound(_rebuild_nested)),
    (_OLD, _rebuild_old),
)
_OURS_OF_FAKES = (
    (torch._tensor._rebuild_from_type_v2, _retyped_fake),
    _UNTYPED,
    (_SPARSE, unmoved(_SPARSE)),
)


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
