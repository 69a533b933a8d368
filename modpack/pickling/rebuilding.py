"""Ours in place of torch's functions that pickles call to make tensors again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from modpack.pickling.placing import unmoved

__all__ = ["rebuilding"]


def rebuilding(is_fake: bool) -> Callable[[Any], Any]:
    """What to call in place of what a pickle names.

    Args:
        is_fake: whether a FakeTensorMode is on.
    """
    pairs = _OURS_OF_FAKES if is_fake else _OURS

    def ours(named: Any) -> Any:
        for theirs, own in pairs:
            if named is theirs:
                return own
        return unmoved(named)

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


def _rebuild_of_untyped(storage: Any, *arguments: Any) -> torch.Tensor:
    """As torch's own function, which looks for the storage inside of the one that it is given."""
    size = storage.nbytes()
    typed = torch.storage.TypedStorage(  # type: ignore[no-untyped-call]
        wrap_storage=storage, dtype=torch.uint8, _internal=True
    )
    tensor = torch._utils._rebuild_tensor_v3(typed, *arguments)  # type: ignore[no-untyped-call]
    _keep_size(storage, size)
    return tensor  # type: ignore[no-any-return]


def _keep_size(memory: Any, size: int) -> None:
    """Undo what torch does to a storage that is too small: makes it larger, with what lies there.

    One without a byte was freed when it was saved, and still is.
    """
    if memory.nbytes() == size:
        return
    if size:
        raise RuntimeError(f"a tensor needs {memory.nbytes()} bytes, but its storage has {size}")
    memory.resize_(0)


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

    torch's own function looks for one again and again, which takes as long as all the rest.
    """
    memory = storage._untyped_storage
    size = memory.nbytes()
    tensor: Any = torch.empty((0,), dtype=storage.dtype, device=memory.device)
    tensor.set_(memory, offset, shape, strides)
    _keep_size(memory, size)
    tensor.requires_grad = requires_grad
    if metadata:
        torch._utils.set_tensor_metadata(tensor, metadata)  # type: ignore[no-untyped-call]
    tensor._backward_hooks = hooks
    return tensor  # type: ignore[no-any-return]


_MAKE_SUBCLASS = torch.Tensor._make_subclass
_UNTYPED = (torch._utils._rebuild_tensor_v3, _rebuild_of_untyped)
_OURS = (
    (torch._utils._rebuild_tensor_v2, _rebuild_tensor),
    (torch._tensor._rebuild_from_type_v2, _retyped),
    _UNTYPED,
)
_OURS_OF_FAKES = ((torch._tensor._rebuild_from_type_v2, _retyped_fake), _UNTYPED)
