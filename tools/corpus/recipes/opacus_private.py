"""A network that opacus wrapped for private training, with hooks on every layer."""

import torch
from opacus import GradSampleModule
from torch import nn

LIBRARIES = ("opacus",)


def build():
    """Return the model and its inputs."""
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return GradSampleModule(net), (torch.randn(2, 4),)
