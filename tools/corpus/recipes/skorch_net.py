"""A network inside the estimator of skorch that fitted it."""

import numpy
import torch
from skorch import NeuralNetRegressor
from torch import nn

LIBRARIES = ("skorch",)


class Fitted(nn.Module):
    """A layer that refers to its estimator."""

    def __init__(self, estimator: NeuralNetRegressor) -> None:
        super().__init__()
        self.estimator = estimator
        self.net = estimator.module_

    def forward(self, x):
        """Return the estimates."""
        return self.net(x)


def build():
    """Return the model and its inputs."""
    estimator = NeuralNetRegressor(
        nn.Linear, module__in_features=4, module__out_features=1, max_epochs=2, verbose=0
    )
    data = numpy.ones((20, 4), dtype="float32")
    return Fitted(estimator.fit(data, data[:, :1])), (torch.randn(2, 4),)
