"""What differs between two outputs, as values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from modpack.core.planjson import Json
from modpack.trial.leaves import Leaf

__all__ = ["Difference", "compare", "difference_from_json"]

_LONGEST = 80


@dataclass(frozen=True)
class Difference:
    """One place where two outputs differ.

    Attributes:
        path: the place: ``output[0].logits``.
        text: what was expected there, and what was found.
        is_structural: whether it is more than a value: another type, shape, dtype or length,
            which no randomness explains.
    """

    path: str
    text: str
    is_structural: bool

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"

    def to_json(self) -> dict[str, Json]:
        """As a record; :func:`difference_from_json` reads it back."""
        return {"path": self.path, "text": self.text, "structural": self.is_structural}


def difference_from_json(record: dict[str, Json]) -> Difference:
    """Read back what :meth:`Difference.to_json` made."""
    return Difference(str(record["path"]), str(record["text"]), bool(record["structural"]))


def compare(expected: Sequence[Leaf], found: Sequence[Leaf]) -> list[Difference]:
    """Every difference between two outputs. Numbers are compared bit by bit.

    Args:
        expected: the output as it should be.
        found: the output as it is.

    >>> from modpack.trial.leaves import leaves_of
    >>> [str(each) for each in compare(leaves_of([1, 2]), leaves_of([1, 3]))]
    ['output[1]: expected 2, found 3']
    """
    return list(_differences(expected, found))


def _differences(expected: Sequence[Leaf], found: Sequence[Leaf]) -> Iterator[Difference]:
    by_path = {leaf.path: leaf for leaf in found}
    known = {leaf.path for leaf in expected}
    for leaf in expected:
        other = by_path.get(leaf.path)
        if other is None:
            yield Difference(leaf.path, f"expected {leaf.structure}, found nothing", True)
        elif other.structure != leaf.structure:
            text = f"expected {leaf.structure}, found {other.structure}"
            yield Difference(leaf.path, text, True)
        elif other.value != leaf.value:
            text = f"expected {_short(leaf.value)}, found {_short(other.value)}"
            yield Difference(leaf.path, text, False)
        elif leaf.tensor is not None and other.tensor is not None:
            yield from _tensors(leaf.path, leaf.tensor, other.tensor)
    for leaf in found:
        if leaf.path not in known:
            yield Difference(leaf.path, f"expected nothing, found {leaf.structure}", True)


def _tensors(path: str, expected: torch.Tensor, found: torch.Tensor) -> Iterator[Difference]:
    if torch.equal(_bits(expected), _bits(found)):
        return
    size = expected.element_size()
    differing = (_bits(expected) != _bits(found)).view(-1, size).any(dim=1)
    places = differing.nonzero()[:, 0]
    first, flat = int(places[0]), (expected.reshape(-1), found.reshape(-1))
    values = [tensor[first].item() for tensor in flat]
    text = (
        f"{len(places)} of {expected.numel()} elements differ, the first at "
        f"{_index(first, expected.shape)}: expected {values[0]!r}, found {values[1]!r}"
    )
    yield Difference(path, text + _largest(flat[0][places], flat[1][places]), False)


def _largest(expected: torch.Tensor, found: torch.Tensor) -> str:
    if expected.dtype is torch.bool:
        return ""
    wide = torch.complex128 if expected.is_complex() else torch.float64
    distance = (expected.to(wide) - found.to(wide)).abs()
    finite = distance[torch.isfinite(distance)]
    return f"; the largest difference is {finite.max().item():.3g}" if len(finite) else ""


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _index(flat: int, shape: torch.Size) -> str:
    index: list[int] = []
    for length in reversed(shape):
        flat, position = divmod(flat, length)
        index.insert(0, position)
    return str(index)


def _short(text: str | None) -> str:
    shown = str(text)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}... ({len(shown)} characters)"
