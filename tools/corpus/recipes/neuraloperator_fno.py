"""A Fourier neural operator."""

import torch
from neuralop.models import FNO

LIBRARIES = ("neuraloperator",)


def build():
    """Return the model and its inputs."""
    model = FNO(n_modes=(4, 4), hidden_channels=8, in_channels=1, out_channels=1, n_layers=2)
    return model, (torch.randn(1, 1, 16, 16),)
