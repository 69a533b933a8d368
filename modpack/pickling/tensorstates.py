"""Attributes of tensors that may lead back to the tensor: they are set once it has been made."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["state_last"]


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
