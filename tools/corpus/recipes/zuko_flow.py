"""A neural spline flow of zuko: conditional, lazily built."""

import torch
import zuko
from torch import nn

LIBRARIES = ("zuko",)


class Density(nn.Module):
    """The log density of points in a context."""

    def __init__(self, flow: nn.Module) -> None:
        super().__init__()
        self.flow = flow

    def forward(self, x, context):
        """Return the log densities."""
        return self.flow(context).log_prob(x)


def build():
    """Return the model and its inputs."""
    flow = zuko.flows.NSF(features=3, context=4, transforms=2, hidden_features=(16, 16))
    return Density(flow), (torch.randn(5, 3), torch.randn(5, 4))
