"""Tensors of ScriptModules, which torch serialises itself: named, so that hooks find them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from modpack.pickling.rebuild import named_in_packages

__all__ = ["ScriptedTensors", "tensor_of"]


class ScriptedTensors:
    """The parameters and buffers of the ScriptModules that a pickler met."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[torch.Tensor, torch.jit.ScriptModule, str]] = {}

    def add(self, module: torch.jit.ScriptModule) -> Iterator[torch.Tensor]:
        """Remember a module's tensors, and give them."""
        for name, tensor in _named_tensors(module):
            self._places.setdefault(id(tensor), (tensor, module, name))
            yield tensor

    def reduced(self, tensor: torch.Tensor) -> tuple[Any, ...] | None:
        """What pickle needs to take a tensor from its ScriptModule; None for other tensors."""
        if id(tensor) not in self._places:
            return None
        _, module, name = self._places[id(tensor)]
        return tensor_of, (module, name)


@named_in_packages
def tensor_of(module: torch.jit.ScriptModule, name: str) -> torch.Tensor:
    """A parameter or buffer of a ScriptModule, by its path."""
    return dict(_named_tensors(module))[name]


def _named_tensors(module: torch.jit.ScriptModule) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
