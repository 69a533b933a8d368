"""Reduction of parametrized modules.

``torch.nn.utils.parametrize`` gives each parametrized module its own class, created at run time,
with a property for each parametrized tensor. That class rejects pickling. The original class and
the module's state are saved, and torch's own functions re-create the class.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.utils import parametrize

from modpack.hooks.parametrized import fill_parametrized, make_parametrized


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
