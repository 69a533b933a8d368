"""Layers of einops in a plain sequence."""

import torch
from einops.layers.torch import EinMix, Rearrange, Reduce
from torch import nn

LIBRARIES = ("einops",)


def build():
    """Return the model and its inputs."""
    model = nn.Sequential(
        Rearrange("b c (h p) (w q) -> b (h w) (c p q)", p=4, q=4),
        EinMix("b n c -> b n d", weight_shape="c d", bias_shape="d", c=48, d=32),
        nn.GELU(),
        Reduce("b n d -> b d", "mean"),
        nn.Linear(32, 10),
    )
    return model, (torch.randn(2, 3, 16, 16),)
