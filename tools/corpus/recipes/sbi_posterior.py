"""A density estimator of sbi, as its factory builds it."""

import torch
from sbi.neural_nets import posterior_nn
from torch import nn

LIBRARIES = ("sbi",)
OPERATORS = "torchvision"


class Density(nn.Module):
    """Log probabilities of parameters, given observations."""

    def __init__(self, estimator) -> None:
        super().__init__()
        self.estimator = estimator

    def forward(self, theta, x):
        """Return one score per row."""
        return self.estimator.log_prob(theta[None], condition=x)


def build():
    """Return the model and its inputs."""
    theta, x = torch.randn(16, 2), torch.randn(16, 3)
    estimator = posterior_nn(model="maf", hidden_features=8, num_transforms=2)(theta, x)
    return Density(estimator), (theta[:4], x[:4])
