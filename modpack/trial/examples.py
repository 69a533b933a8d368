"""What a model is run on: the arguments of one call."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Example", "as_example"]


@dataclass(frozen=True)
class Example:
    """The arguments of one call of a model.

    Attributes:
        args: the positional ones.
        kwargs: the ones by name.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def call(self, model: Any) -> Any:
        """Run a model on them. It gets copies, so that it may change what it is given."""
        args, kwargs = _copied((self.args, self.kwargs))
        return model(*args, **kwargs)


def as_example(model: object, inputs: object, kwargs: object = None) -> Example | None:
    """The example that a user gives, as :func:`torch.export.export` takes it.

    Args:
        model: what is to be called.
        inputs: a tuple holds the positional arguments; a mapping with the names of arguments
            holds arguments by name; anything else is the one argument. None: there is none.
        kwargs: arguments by name.

    Returns:
        The example; None if nothing was given.

    Raises:
        TypeError: it is not clear what is meant, or the model cannot be called.

    >>> as_example(len, ("abc",))
    Example(args=('abc',), kwargs={})
    """
    if inputs is None and kwargs is None:
        return None
    if not callable(model):
        raise TypeError(
            f"example_inputs were given, but a {type(model).__name__} cannot be called with them"
        )
    named = _named(kwargs)
    if isinstance(inputs, list):
        raise TypeError(
            "example_inputs must be a tuple of arguments, a mapping of arguments by name, or one "
            "argument. A list could be either: give (xs,) for one argument that is a list, "
            "tuple(xs) for several arguments"
        )
    if isinstance(inputs, Mapping) and kwargs is None and _holds_names(inputs):
        return Example((), dict(inputs))
    if inputs is None:
        return Example((), named)
    args = inputs if type(inputs) is tuple else (inputs,)
    return Example(args, named)


def _named(kwargs: object) -> dict[str, Any]:
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping) or not _holds_names(kwargs):
        raise TypeError(
            "example_kwargs must be a mapping from names of arguments to their values, "
            f"not {type(kwargs).__name__}"
        )
    return dict(kwargs)


def _holds_names(mapping: Mapping[Any, Any]) -> bool:
    return all(isinstance(key, str) and key.isidentifier() for key in mapping)


def _copied(arguments: Any) -> Any:
    """A deep copy; what cannot be copied is used as it is."""
    try:
        return copy.deepcopy(arguments)
    except (RuntimeError, TypeError, ValueError, AttributeError, copy.Error):
        return _shallow(arguments)


def _shallow(value: Any) -> Any:
    """The containers copied, the tensors detached from what they were computed of."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value) in (tuple, list):
        return type(value)(map(_shallow, value))
    if type(value) is dict:
        return {key: _shallow(part) for key, part in value.items()}
    return value
