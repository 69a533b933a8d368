"""Reductions of tensors that keep what torch's own leave behind without a word."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch.nn import Parameter, UninitializedParameter

from modpack.core.storageuse import StorageView
from modpack.pickling.ordinarytensors import has_memory, is_ordinary
from modpack.pickling.rebuilding import PACKED, freed_tensor
from modpack.pickling.rows import RefusedError
from modpack.pickling.storageviews import view_of

__all__ = ["reduce_tensor"]


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
