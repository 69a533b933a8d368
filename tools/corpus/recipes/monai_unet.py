"""A U-Net of monai, after two of its transforms."""

import torch
from monai.networks.nets import UNet
from monai.transforms import Compose, NormalizeIntensity, ScaleIntensity
from torch import nn

LIBRARIES = ("monai",)
OPERATORS = "torchvision"


class Segmenter(nn.Module):
    """A network that prepares its input itself."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.prepare = Compose([ScaleIntensity(), NormalizeIntensity()])

    def forward(self, images):
        """Return class scores per pixel."""
        prepared = [torch.as_tensor(self.prepare(image)) for image in images]
        return self.net(torch.stack(prepared))


def build():
    """Return the model and its inputs."""
    net = UNet(spatial_dims=2, in_channels=1, out_channels=2, channels=(4, 8, 16), strides=(2, 2))
    return Segmenter(net), (torch.rand(1, 1, 16, 16),)
