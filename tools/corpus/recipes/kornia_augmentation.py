"""Color and geometry of kornia before a small network."""

import kornia
import torch
from torch import nn

LIBRARIES = ("kornia",)


def build():
    """Return the model and its inputs."""
    model = nn.Sequential(
        kornia.color.RgbToGrayscale(),
        kornia.filters.GaussianBlur2d((3, 3), (1.0, 1.0)),
        kornia.filters.Sobel(),
        nn.Conv2d(1, 4, 3),
    )
    return model, (torch.rand(1, 3, 16, 16),)
