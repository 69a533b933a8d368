"""An equivariant tensor product of e3nn, which generates its own code."""

import torch
from e3nn import o3

LIBRARIES = ("e3nn",)


def build():
    """Return the model and its inputs."""
    model = o3.FullyConnectedTensorProduct("4x0e + 2x1o", "1x0e + 1x1o", "4x0e + 2x1o")
    return model, (torch.randn(3, 10), torch.randn(3, 4))
