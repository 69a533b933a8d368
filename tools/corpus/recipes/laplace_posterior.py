"""A Laplace approximation around a small network, of laplace-torch."""

import torch
from laplace import Laplace
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LIBRARIES = ("laplace-torch",)
OPERATORS = "torchvision"


class Posterior(nn.Module):
    """The predictive mean and variance."""

    def __init__(self, posterior) -> None:
        super().__init__()
        self.posterior = posterior

    def forward(self, x):
        """Return both."""
        return self.posterior(x)


def build():
    """Return the model and its inputs."""
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    posterior = Laplace(net, "regression", subset_of_weights="last_layer", hessian_structure="full")
    posterior.fit(DataLoader(TensorDataset(torch.randn(8, 3), torch.randn(8, 1)), batch_size=4))
    return Posterior(posterior), (torch.randn(2, 3),)
