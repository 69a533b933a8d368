"""Running a live model without leaving a trace: its tensors are put back, whatever their layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import is_lazy

__all__ = ["PutBack", "preserved", "versions_of"]

PutBack = Callable[[], None]
"""Puts the content of every tensor back that was saved with the model and has changed."""


@dataclass(frozen=True)
class _Held:
    """The parameters and buffers of one module, as they were."""

    module: torch.nn.Module
    kind: type
    parameters: Mapping[str, torch.Tensor | None]
    buffers: Mapping[str, torch.Tensor | None]

    @staticmethod
    def of(module: torch.nn.Module) -> _Held:
        # dict() takes the wrappers that a ScriptModule shows in place of dicts as well.
        return _Held(module, type(module), dict(module._parameters), dict(module._buffers))

    def put_back(self) -> None:
        if type(self.module) is self.kind:  # a lazy module has become another one for good
            _refill(self.module._parameters, self.parameters)
            _refill(self.module._buffers, self.buffers)


@contextmanager
def preserved(model: Any, put_back: PutBack) -> Iterator[None]:
    """Keep parameters and buffers the same tensors, with the same contents, over a block.

    Args:
        model: the live model; of other objects nothing but ``put_back`` is done.
        put_back: puts back the tensors that were saved.
    """
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    held = [_Held.of(module) for module in modules]
    with torch._C.DisableTorchFunctionSubclass():  # a class may refuse to be asked
        tensors = [
            (tensor, tensor.data)
            for each in held
            for tensor in (*each.parameters.values(), *each.buffers.values())
            if tensor is not None and not is_lazy(tensor)
        ]
    try:
        yield
    finally:
        for each in held:
            each.put_back()
        with torch._C.DisableTorchFunctionSubclass():
            for tensor, data in tensors:
                if _has_moved(tensor, data):
                    tensor.data = data
        put_back()


def versions_of(model: Any) -> list[int]:
    """How often each tensor of a model was written to in place; shows whether it was changed."""
    if not isinstance(model, torch.nn.Module):
        return []
    tensors = (t for t in (*model.parameters(), *model.buffers()) if not is_lazy(t))
    with torch._C.DisableTorchFunctionSubclass():
        return [t._version for t in tensors if not t.is_inference()]


def _refill(contents: MutableMapping[str, Any], before: Mapping[str, torch.Tensor | None]) -> None:
    now = dict(contents)
    if list(now) == list(before) and all(now[name] is before[name] for name in before):
        return
    if isinstance(contents, dict):
        contents.clear()
    for name, tensor in before.items():  # a ScriptModule cannot lose or gain any
        contents[name] = tensor


def _has_moved(tensor: torch.Tensor, data: torch.Tensor) -> bool:
    """Whether a tensor may show other memory than it did; ``data`` is what it was."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return True  # it consists of several tensors, and has no address of its own
    return tensor.data_ptr() != data.data_ptr() or tensor.shape != data.shape
