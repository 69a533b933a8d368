"""What a tensor's reduction tells of the storage that it is saved with."""

from __future__ import annotations

from typing import Any

import torch

from modpack.core.storageuse import LARGE, StorageView

__all__ = ["view_of_large"]


def view_of_large(reduction: Any) -> tuple[torch.UntypedStorage, StorageView] | None:
    """The large storage that a tensor lies in, and which part of it the tensor is.

    Args:
        reduction: what ``Tensor.__reduce_ex__`` gave.

    Returns:
        None for a tensor of a small storage, and for what has none itself: a parameter, which
        holds another tensor, or what is sparse or nested, and is made of others.
    """
    function, arguments = reduction[:2]
    if function is torch._tensor._rebuild_from_type_v2:
        function, _, arguments, _ = arguments
    if function not in _MADE_OF_A_STORAGE:
        return None
    typed, offset, shape, stride = arguments[:4]
    is_untyped = isinstance(typed, torch.UntypedStorage)
    storage = typed if is_untyped else typed._untyped_storage
    if storage.nbytes() < LARGE:
        return None
    dtype = arguments[_DTYPE_OF_UNTYPED] if is_untyped else typed.dtype
    return storage, StorageView(offset, tuple(shape), tuple(stride), dtype.itemsize)


_DTYPE_OF_UNTYPED = 6
"""The argument that says the element type, where the storage does not."""

_MADE_OF_A_STORAGE = (
    torch._utils._rebuild_tensor_v2,
    torch._utils._rebuild_tensor_v3,
    torch._utils._rebuild_qtensor,
)
