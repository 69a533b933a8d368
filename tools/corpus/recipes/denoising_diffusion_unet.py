"""The U-Net of denoising-diffusion-pytorch."""

import torch
from denoising_diffusion_pytorch import Unet

LIBRARIES = ("denoising-diffusion-pytorch",)
OPERATORS = "torchvision"


def build():
    """Return the model and its inputs."""
    model = Unet(dim=8, dim_mults=(1, 2), flash_attn=False)
    return model, (torch.randn(1, 3, 16, 16), torch.tensor([5]))
