"""Re-creation of parametrized modules, and names of tensors in ScriptModules.

Packages contain a parametrized module's original class and its state; torch's own functions create
the class with the parametrizations again. Tensors of ScriptModules, which torch serializes itself,
are saved by name so that hooks find them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.utils import parametrize

from modpack.pickling.rebuild import named_in_packages


@named_in_packages
def make_parametrized(original: type[torch.nn.Module]) -> torch.nn.Module:
    """Return an empty module of the original class."""
    module: torch.nn.Module = original.__new__(original)
    return module


@named_in_packages
def fill_parametrized(module: torch.nn.Module, state: Any) -> None:
    """Set a module's state, class, and parametrized tensors."""
    module.__setstate__(state)  # type: ignore[no-untyped-call]
    parametrize._inject_new_class(module)
    for name in module.parametrizations:  # type: ignore[union-attr]
        parametrize._inject_property(module, name)


@named_in_packages
def tensor_of(module: torch.jit.ScriptModule, name: str) -> torch.Tensor:
    """Return a parameter or buffer of a ScriptModule by its path."""
    return dict(named_tensors_of(module))[name]


def named_tensors_of(module: torch.jit.ScriptModule) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers of a ScriptModule with every path to each."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
