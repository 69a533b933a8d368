"""A gated equivariant layer of e3nn."""

import torch
from e3nn.nn import Gate
from torch import nn

LIBRARIES = ("e3nn",)


def build():
    """Return the model and its inputs."""
    gate = Gate("4x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o")
    return nn.Sequential(gate), (torch.randn(3, gate.irreps_in.dim),)
