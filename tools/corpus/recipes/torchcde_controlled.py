"""A neural controlled differential equation of torchcde."""

import torch
import torchcde
from torch import nn

LIBRARIES = (
    "torchcde",
    "torchdiffeq",
    "torchsde",
)


class Field(nn.Module):
    """The right-hand side."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.layer, self.shape = nn.Linear(width, width * channels), (width, channels)

    def forward(self, time, state):
        """Return one matrix per state."""
        return self.layer(state).tanh().unflatten(-1, self.shape)


class Controlled(nn.Module):
    """The state at the end."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.field, self.start = Field(channels, width), nn.Linear(channels, width)

    def forward(self, coefficients):
        """Follow the path."""
        path = torchcde.CubicSpline(coefficients)
        start = self.start(path.evaluate(path.interval[0]))
        return torchcde.cdeint(X=path, func=self.field, z0=start, t=path.interval)[:, -1]


def build():
    """Return the model and its inputs."""
    times = torch.linspace(0, 1, 6).expand(2, 6)
    points = torch.stack([times, torch.randn(2, 6)], dim=-1)
    return Controlled(2, 4), (
        torchcde.hermite_cubic_coefficients_with_backward_differences(points),
    )
