"""A small U-Net of diffusers, which stores its configuration."""

import torch
from diffusers import UNet2DModel

LIBRARIES = ("diffusers",)
OPERATORS = "torchvision"


def build():
    """Return the model and its inputs."""
    model = UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(32, 32),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return model, (torch.randn(1, 3, 16, 16), torch.tensor([5]))
