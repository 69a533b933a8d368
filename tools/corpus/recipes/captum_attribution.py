"""A network with the integrated gradients of captum."""

import torch
from captum.attr import IntegratedGradients
from torch import nn

LIBRARIES = ("captum",)


class Explained(nn.Module):
    """Attributes outputs to inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.attribution = IntegratedGradients(self.net)

    def forward(self, x):
        """Return attributions to the first class."""
        with torch.enable_grad():
            return self.attribution.attribute(x, target=0, n_steps=8).detach()


def build():
    """Return the model and its inputs."""
    return Explained(), (torch.randn(2, 4),)
