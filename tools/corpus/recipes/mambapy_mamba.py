"""A Mamba of mambapy, in plain Python."""

import torch
from mambapy.mamba import Mamba, MambaConfig

LIBRARIES = ("mambapy",)


def build():
    """Return the model and its inputs."""
    return Mamba(MambaConfig(d_model=16, n_layers=2)), (torch.randn(2, 8, 16),)
