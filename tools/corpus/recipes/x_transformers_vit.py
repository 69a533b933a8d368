"""A vision transformer of x-transformers."""

import torch
from x_transformers import Encoder, ViTransformerWrapper

LIBRARIES = ("x-transformers",)


def build():
    """Return the model and its inputs."""
    model = ViTransformerWrapper(
        image_size=32,
        patch_size=8,
        num_classes=10,
        attn_layers=Encoder(dim=32, depth=2, heads=4, attn_dim_head=8),
    )
    return model, (torch.randn(2, 3, 32, 32),)
