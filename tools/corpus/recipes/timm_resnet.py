"""resnet18 of timm."""

import timm
import torch

LIBRARIES = ("timm",)
OPERATORS = "torchvision"


def build():
    """Return the model and its inputs."""
    model = timm.create_model("resnet18", num_classes=10)
    return model, (torch.randn(1, 3, 64, 64),)
