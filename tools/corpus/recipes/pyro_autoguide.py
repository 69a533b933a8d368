"""A normalizing flow of pyro's distributions."""

import pyro.distributions.transforms as transforms
import torch
from pyro.nn import AutoRegressiveNN
from torch import nn

LIBRARIES = ("pyro-ppl",)


class Warped(nn.Module):
    """A transform, applied."""

    def __init__(self, transform: nn.Module) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, x):
        """Return the transformed points."""
        return self.transform(x)


def build():
    """Return the model and its inputs."""
    flow = transforms.AffineAutoregressive(AutoRegressiveNN(4, [16]))
    return Warped(flow), (torch.randn(3, 4),)
