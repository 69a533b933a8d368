"""Reductions of tensors that keep what torch's own leave behind without a word."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch.nn import Parameter, UninitializedParameter

from modpack.core.storageuse import StorageView
from modpack.pickling.ordinarytensors import is_ordinary, require_memory
from modpack.pickling.storageviews import view_of

__all__ = ["reduce_tensor"]


def reduce_tensor(tensor: Any, protocol: int) -> Any:
    """What a tensor is reduced to; all that this calls is torch's, for torch.package to load it.

    torch would make a plain parameter of one whose class is derived from Parameter, give lazy ones
    the element type of the process that loads them, and forget that sparse ones need gradients.

    Args:
        tensor: of any class; one that has a reduction of its own is reduced by that.
        protocol: of the pickle.

    Raises:
        RefusedError: its storage is smaller than it.
    """
    kind: Any = type(tensor)
    if kind is not Parameter and kind.__reduce_ex__ in _LOSE_THE_REST:
        if kind.__reduce__ is not object.__reduce__:
            return tensor.__reduce__()
        return _of_kind(kind, tensor)
    reduced = tensor.__reduce_ex__(protocol)
    if isinstance(reduced, tuple) and reduced[1]:
        _require_memory_of(tensor, reduced)
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
            require_memory(data.untyped_storage(), StorageView(*place, data.dtype.itemsize))
    return _RETYPED, (torch.Tensor._make_subclass, kind, parts, {} if state is None else state)


def _needing_gradients(tensor: Any, reduced: Any, protocol: int) -> Any:
    """As one that needs none, and the state that says so: what Tensor.__setstate__ takes."""
    function, arguments = tensor.detach().__reduce_ex__(protocol)
    if reduced[0] is _RETYPED:
        kind, state = reduced[1][1], reduced[1][3]
        function, arguments = _RETYPED, (function, kind, arguments, state)
    hooks: OrderedDict[int, Any] = OrderedDict()
    return function, arguments, (True, None, hooks)


def _require_memory_of(tensor: Any, reduced: Any) -> None:
    found = view_of(reduced)
    is_packed = _made_by(reduced) is torch._utils._rebuild_qtensor and tensor.dtype in _PACKED
    if found is not None and not is_packed:
        require_memory(*found)


def _made_by(reduced: Any) -> Any:
    return reduced[1][0] if reduced[0] is _RETYPED else reduced[0]


_RETYPED = torch._tensor._rebuild_from_type_v2
_LOSE_THE_REST = (Parameter.__reduce_ex__, UninitializedParameter.__reduce_ex__)
_LOSE_GRADIENTS = (torch._utils._rebuild_sparse_tensor, torch._utils._rebuild_nested_tensor)
_PACKED = (torch.quint4x2, torch.quint2x4)
"""Element types of which several make a byte."""
