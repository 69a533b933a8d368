"""A scheduler of diffusers with its stored configuration, and a sampling loop."""

import torch
from diffusers import DDIMScheduler
from torch import nn

LIBRARIES = ("diffusers",)
OPERATORS = "torchvision"


class Sampler(nn.Module):
    """Denoises in two steps."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Conv2d(1, 1, 3, padding=1)
        self.scheduler = DDIMScheduler(num_train_timesteps=10)

    def forward(self, sample):
        """Return the sample after them."""
        self.scheduler.set_timesteps(2)
        for time in self.scheduler.timesteps:
            sample = self.scheduler.step(self.net(sample), time, sample).prev_sample
        return sample


def build():
    """Return the model and its inputs."""
    return Sampler(), (torch.randn(1, 1, 8, 8),)
