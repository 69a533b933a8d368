"""What a model put out, as a flat list that can be compared bit for bit."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

Leaf = torch.Tensor | str | int | float | bool | None


def leaves(value: Any) -> dict[str, Leaf]:
    """The tensors and plain values in an output, by their path in it.

    Mappings, sequences and the attributes of any other objects are followed, an object that is
    reached twice only once.
    """
    return dict(_leaves(value, "output", set()))


def _leaves(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, torch.Tensor):
        yield path, value.detach().as_subclass(torch.Tensor).clone()
    elif value is None or isinstance(value, (str, int, float, bool)):
        yield path, value
    elif id(value) not in seen:
        seen.add(id(value))
        for part, below in _parts(value):
            yield from _leaves(below, path + part, seen)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", below) for key, below in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{number}]", below) for number, below in enumerate(value))
    elif not isinstance(value, (type, types.FunctionType, types.MethodType, types.ModuleType)):
        yield from ((f".{name}", below) for name, below in getattr(value, "__dict__", {}).items())


def difference(expected: Mapping[str, Leaf], found: Mapping[str, Leaf]) -> str | None:
    """The first leaf that is not the same to the last bit, in a few words; None if all are."""
    if list(expected) != list(found):
        odd = sorted(set(expected) ^ set(found))
        return f"other leaves: {', '.join(odd) or 'in another order'}"
    return next(
        (f"{path} differs" for path in expected if not _same(expected[path], found[path])), None
    )


def _same(one: Leaf, other: Leaf) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and torch.equal(_bits(one), _bits(other))
    return type(one) is type(other) and repr(one) == repr(other)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
