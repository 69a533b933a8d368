"""Models and objects to save and load. This module is interned."""

from __future__ import annotations

from collections.abc import Iterable

import torch


class Weights(torch.nn.Module):
    """A model with only parameters."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(map(torch.nn.Parameter, tensors))


class Small(torch.nn.Module):
    """A typical small model of 1 MB."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(256, 512),
            torch.nn.ReLU(),
            torch.nn.BatchNorm1d(512),
            torch.nn.Linear(512, 230),
            torch.nn.ReLU(),
            torch.nn.Linear(230, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Entry:
    """A small object with attributes."""

    def __init__(self, number: int) -> None:
        self.name = f"layer.{number}"
        self.step = number
        self.score = number / 2


def tensors(count: int, size: int) -> Weights:
    """Return a model of ``count`` tensors of ``size`` bytes each."""
    return Weights(torch.full((size // 4,), 0.5 + number % 7) for number in range(count))


def plain(count: int) -> dict[str, object]:
    """Return a state of small containers."""
    return {
        f"layer.{number}": {"step": number, "score": number / 2, "shape": (number, 3)}
        for number in range(count)
    }


def objects(count: int) -> dict[str, object]:
    """Return a state of small objects."""
    return {f"layer.{number}": Entry(number) for number in range(count)}


def small() -> Small:
    """Return a model of 1 MB."""
    torch.manual_seed(0)
    return Small()


FACTORIES = {"tensors": tensors, "plain": plain, "objects": objects, "small": small}
