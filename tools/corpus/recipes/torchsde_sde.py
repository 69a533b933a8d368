"""A stochastic differential equation, solved by torchsde."""

import torch
import torchsde
from torch import nn

LIBRARIES = ("torchsde",)


class Diffusion(nn.Module):
    """A drift and a diffusion function."""

    noise_type = "diagonal"
    sde_type = "ito"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.drift, self.noise = nn.Linear(width, width), nn.Linear(width, width)

    def f(self, time, state):
        """Return the drift."""
        return self.drift(state)

    def g(self, time, state):
        """Return the noise."""
        return torch.sigmoid(self.noise(state))

    def forward(self, state, times):
        """Return one state per time."""
        motion = torchsde.BrownianInterval(0.0, 1.0, size=state.shape, entropy=7)
        return torchsde.sdeint(self, state, times, bm=motion, dt=0.1, method="euler")


def build():
    """Return the model and its inputs."""
    return Diffusion(4), (torch.randn(3, 4), torch.linspace(0.0, 1.0, 5))
