"""A network of deepxde, whose backend is chosen when it is imported."""

import os

os.environ["DDE_BACKEND"] = "pytorch"

import deepxde
import torch

LIBRARIES = ("deepxde",)


def build():
    """Return the model and its inputs."""
    torch.set_default_device("cpu")
    return deepxde.nn.FNN([2, 16, 16, 1], "tanh", "Glorot normal"), (torch.randn(4, 2),)
