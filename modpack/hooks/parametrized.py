"""Reduction of parametrized modules, and names of tensors in ScriptModules.

``torch.nn.utils.parametrize`` gives each parametrized module its own class, created at run time,
with a property for each parametrized tensor. That class rejects pickling. The original class and
the module's state are saved, and torch's own functions re-create the class. Tensors of
ScriptModules, which torch serializes itself, are saved by name so that hooks find them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.utils import parametrize

from modpack.pickling.rebuild import named_in_packages


def is_parametrized(module: torch.nn.Module) -> bool:
    """Return whether a module has the class that torch created for its parametrizations."""
    made_here = type(module).__module__ == parametrize.__name__
    return made_here and parametrize.is_parametrized(module)


def reduce_parametrized(module: torch.nn.Module) -> tuple[Any, ...]:
    """Return the reduction of a parametrized module; the class that torch created rejects it."""
    original = type(module).__bases__[0]
    own: Any = getattr(original, "__getstate__", None)
    is_plain = own is None or own is getattr(object, "__getstate__", None)
    state = dict(module.__dict__) if is_plain else own(module)
    return make_parametrized, (original,), state, None, None, fill_parametrized


def parametrizations_of(module: torch.nn.Module) -> Iterator[tuple[str, int, torch.nn.Module]]:
    """Yield each parametrization of a module: tensor name, position in the chain, and module."""
    for name, chain in module.parametrizations.items():  # type: ignore[operator, union-attr]
        yield from ((name, position, each) for position, each in enumerate(chain))


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
