"""The models of the benchmark."""

from __future__ import annotations

import torch


class Small(torch.nn.Module):
    """A model that computes in microseconds, so that the server is measured."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Deep(torch.nn.Module):
    """A model of many small layers, so that a batch costs little more than one row."""

    def __init__(self, width: int = 64, depth: int = 400) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = [torch.nn.Linear(16, width)]
        for _ in range(depth):
            layers += [torch.nn.ReLU(), torch.nn.Linear(width, width)]
        self.layers = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(width, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Large(torch.nn.Module):
    """A model with 1 GiB of weights, most of which a call reads."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(16, 16384)
        self.weights = torch.nn.Linear(16384, 16384)
        self.outer = torch.nn.Linear(16384, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.weights(self.inner(x)))
