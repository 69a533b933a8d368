"""swin_tiny_patch4_window7_224 of timm."""

import timm
import torch

LIBRARIES = ("timm",)
OPERATORS = "torchvision"


def build():
    """Return the model and its inputs."""
    model = timm.create_model(
        "swin_tiny_patch4_window7_224",
        num_classes=10,
        img_size=56,
        depths=(1, 1, 1, 1),
        embed_dim=24,
        num_heads=(1, 2, 2, 4),
    )
    return model, (torch.randn(1, 3, 56, 56),)
