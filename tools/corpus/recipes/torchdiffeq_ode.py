"""A neural ordinary differential equation, solved by torchdiffeq."""

import torch
from torch import nn
from torchdiffeq import odeint_adjoint

LIBRARIES = ("torchdiffeq",)


class Velocity(nn.Module):
    """The right-hand side."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, width))

    def forward(self, time, state):
        """Return the derivative."""
        return self.net(state) * torch.exp(-time)


class Flow(nn.Module):
    """The solution at given times."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.velocity = Velocity(width)

    def forward(self, state, times):
        """Return one state per time."""
        return odeint_adjoint(self.velocity, state, times, method="dopri5")


def build():
    """Return the model and its inputs."""
    return Flow(4), (torch.randn(3, 4), torch.linspace(0.0, 1.0, 5))
