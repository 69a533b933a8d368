"""A Perceiver of perceiver-pytorch."""

import torch
from perceiver_pytorch import Perceiver

LIBRARIES = ("perceiver-pytorch",)


def build():
    """Return the model and its inputs."""
    model = Perceiver(
        input_channels=3,
        input_axis=1,
        num_freq_bands=2,
        max_freq=4.0,
        depth=2,
        num_latents=4,
        latent_dim=8,
        cross_heads=1,
        latent_heads=2,
        cross_dim_head=4,
        latent_dim_head=4,
        num_classes=3,
        weight_tie_layers=True,
    )
    return model, (torch.randn(2, 6, 3),)
