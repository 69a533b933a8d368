"""A network with the hooks of accelerate, which replace the forward of each layer."""

import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch import nn

LIBRARIES = ("accelerate",)


def build():
    """Return the model and its inputs."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    for layer in model:
        add_hook_to_module(layer, AlignDevicesHook(execution_device="cpu", io_same_device=True))
    return model, (torch.randn(2, 4),)
