"""The network of efficientnet-pytorch."""

import torch
from efficientnet_pytorch import EfficientNet

LIBRARIES = ("efficientnet-pytorch",)


def build():
    """Return the model and its inputs."""
    model = EfficientNet.from_name("efficientnet-b0", num_classes=10)
    return model, (torch.randn(1, 3, 64, 64),)
