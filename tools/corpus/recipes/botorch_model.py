"""A Gaussian process of botorch, with its transforms."""

import torch
from botorch.models import SingleTaskGP
from torch import nn

LIBRARIES = (
    "botorch",
    "gpytorch",
    "linear-operator",
)


class Posterior(nn.Module):
    """The posterior's mean and variance."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x):
        """Return both."""
        found = self.model.posterior(x)
        return found.mean, found.variance


def build():
    """Return the model and its inputs."""
    points = torch.rand(8, 2, dtype=torch.double)
    model = SingleTaskGP(points, points.sin().sum(1, keepdim=True))
    return Posterior(model), (torch.rand(4, 2, dtype=torch.double),)
