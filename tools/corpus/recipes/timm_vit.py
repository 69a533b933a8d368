"""vit_tiny_patch16_224 of timm."""

import timm
import torch

LIBRARIES = ("timm",)
OPERATORS = "torchvision"


def build():
    """Return the model and its inputs."""
    model = timm.create_model(
        "vit_tiny_patch16_224",
        num_classes=10,
        img_size=32,
        patch_size=8,
        depth=2,
    )
    return model, (torch.randn(1, 3, 32, 32),)
