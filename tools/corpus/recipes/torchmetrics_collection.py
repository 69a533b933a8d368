"""Metrics of torchmetrics inside a model."""

import torch
import torchmetrics
from torch import nn

LIBRARIES = ("torchmetrics",)
OPERATORS = "torchvision"


class Scored(nn.Module):
    """A classifier with its own metrics."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, classes)
        self.scores = torchmetrics.MetricCollection(
            {
                "accuracy": torchmetrics.Accuracy("multiclass", num_classes=classes),
                "f1": torchmetrics.F1Score("multiclass", num_classes=classes),
            }
        )

    def forward(self, x, y):
        """Return class scores and their accuracy."""
        found = self.layer(x)
        self.scores.reset()
        return found, self.scores(found, y)


def build():
    """Return the model and its inputs."""
    return Scored(8, 3), (torch.randn(6, 8), torch.tensor([0, 1, 2, 0, 1, 2]))
