"""A LightningModule with hyperparameters and a metric."""

import lightning
import torch
from torch import nn

LIBRARIES = ("lightning",)
OPERATORS = "torchvision"


class Classifier(lightning.LightningModule):
    """A small classifier."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 3))

    def forward(self, x):
        """Return class scores."""
        return self.net(x)

    def training_step(self, batch, batch_idx):
        """Return the loss."""
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self):
        """Return an Adam optimizer."""
        return torch.optim.Adam(self.parameters())


def build():
    """Return the model and its inputs."""
    return Classifier(hidden=16), (torch.randn(2, 8),)
