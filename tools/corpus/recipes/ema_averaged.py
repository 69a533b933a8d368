"""A network with its moving average, of ema-pytorch."""

import torch
from ema_pytorch import EMA
from torch import nn

LIBRARIES = ("ema-pytorch",)


def build():
    """The model and its inputs."""
    average = EMA(nn.Linear(4, 4), beta=0.9, update_every=1)
    average.update()
    return average, (torch.randn(2, 4),)
