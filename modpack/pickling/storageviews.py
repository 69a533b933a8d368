"""What a tensor's reduction tells of the storage that it is saved with."""

from __future__ import annotations

from typing import Any

import torch

from modpack.core.storageuse import LARGE, StorageView
from modpack.pickling.ordinarytensors import Reduced, StoragePlace

__all__ = ["is_small", "view_of", "view_of_large"]


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
