"""The compact convolutional transformer of vit-pytorch."""

import torch
from vit_pytorch.cct import CCT

LIBRARIES = ("vit-pytorch",)
OPERATORS = "torchvision"


def build():
    """Return the model and its inputs."""
    model = CCT(
        img_size=32,
        embedding_dim=32,
        n_conv_layers=1,
        kernel_size=7,
        stride=2,
        padding=3,
        pooling_kernel_size=3,
        pooling_stride=2,
        pooling_padding=1,
        num_layers=2,
        num_heads=4,
        mlp_ratio=2.0,
        num_classes=10,
    )
    return model, (torch.randn(2, 3, 32, 32),)
