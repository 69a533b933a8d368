"""What is called in place of torch's functions that pickles name to make tensors again.

torch trusts a pickle: its functions make a storage larger that is too small, divide by what they
are given, and do not look whether parts lie inside. These look first.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from modpack.errors import ModpackError
from modpack.pickling.rebuild import named_in_packages


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
    from modpack.core.tensors import StorageView  # mapped storages, as most are, need no check

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


def unmoved(function: Any) -> Any:
    """In place of a function that a pickle calls: one that a ``torch.device`` context leaves alone.

    The context is for new tensors. A sparse one would follow it without its values, while the
    dense ones stay where they were saved.
    """
    return _sparse_in_place if function is torch._utils._rebuild_sparse_tensor else function


def _sparse_in_place(layout: torch.layout, data: tuple[Any, ...]) -> torch.Tensor:
    with data[0].device:
        return torch._utils._rebuild_sparse_tensor(layout, data)  # type: ignore[no-any-return, no-untyped-call]


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
    from modpack.core.tensors import StorageView

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
