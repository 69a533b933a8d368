"""What compiling leaves on tensors: it tells of this process, and is left out of packages."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["without_marks"]

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
