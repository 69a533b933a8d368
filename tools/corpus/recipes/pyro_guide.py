"""A variational autoencoder's model and guide in pyro."""

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.nn import PyroModule, PyroSample
from torch import nn

LIBRARIES = ("pyro-ppl",)


class BayesianRegression(PyroModule):
    """A linear layer whose weights are sampled."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.linear = PyroModule[nn.Linear](inputs, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, inputs]).to_event(2))

    def regression(self, x, y):
        """Return the generative model."""
        mean = self.linear(x).squeeze(-1)
        with pyro.plate("data", x.shape[0]):
            return pyro.sample("obs", dist.Normal(mean, 0.1), obs=y)

    def forward(self, x, y):
        """Return the joint log density of one draw."""
        return poutine.trace(self.regression).get_trace(x, y).log_prob_sum()


def build():
    """Return the model and its inputs."""
    return BayesianRegression(3), (torch.randn(5, 3), torch.randn(5))
