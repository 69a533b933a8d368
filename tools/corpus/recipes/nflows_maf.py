"""A flow of nflows, with its distribution."""

import torch
from nflows.distributions.normal import StandardNormal
from nflows.flows.base import Flow
from nflows.transforms.autoregressive import MaskedAffineAutoregressiveTransform
from nflows.transforms.base import CompositeTransform
from nflows.transforms.permutations import ReversePermutation
from torch import nn

LIBRARIES = ("nflows",)


class Density(nn.Module):
    """The log density of points."""

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self.flow = flow

    def forward(self, x):
        """Return the log densities."""
        return self.flow.log_prob(x)


def build():
    """Return the model and its inputs."""
    steps = [ReversePermutation(4), MaskedAffineAutoregressiveTransform(4, hidden_features=8)]
    return Density(Flow(CompositeTransform(steps), StandardNormal([4]))), (torch.randn(5, 4),)
