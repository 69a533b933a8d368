"""A network with the optimizer that trained it, of lion-pytorch."""

import torch
from lion_pytorch import Lion
from torch import nn

LIBRARIES = ("lion-pytorch",)


class Trained(nn.Module):
    """A layer that refers to its optimizer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.optimizer = Lion(self.layer.parameters(), lr=0.1)

    def forward(self, x):
        """Apply the layer."""
        return self.layer(x)


def build():
    """Return the model and its inputs."""
    model = Trained(8)
    model(torch.randn(4, 8)).square().sum().backward()
    model.optimizer.step()
    return model, (torch.randn(2, 8),)
