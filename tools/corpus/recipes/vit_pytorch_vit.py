"""The vision transformer of vit-pytorch."""

import torch
from vit_pytorch import ViT

LIBRARIES = ("vit-pytorch",)
OPERATORS = "torchvision"


def build():
    """Return the model and its inputs."""
    model = ViT(image_size=32, patch_size=8, num_classes=10, dim=32, depth=2, heads=4, mlp_dim=64)
    return model, (torch.randn(2, 3, 32, 32),)
