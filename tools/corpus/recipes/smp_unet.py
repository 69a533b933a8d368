"""A U-Net of segmentation-models-pytorch."""

import segmentation_models_pytorch as smp
import torch

LIBRARIES = ("segmentation-models-pytorch",)
OPERATORS = "torchvision"


def build():
    """Return the model and its inputs."""
    model = smp.Unet("resnet18", encoder_weights=None, classes=2)
    return model, (torch.randn(1, 3, 64, 64),)
