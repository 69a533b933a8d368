"""A custom autograd function of entmax inside a small network."""

import entmax
import torch
from torch import nn

LIBRARIES = ("entmax",)


class SparseAttention(nn.Module):
    """Attention whose weights are exactly zero for most positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.queries, self.keys = nn.Linear(width, width), nn.Linear(width, width)
        self.weights = entmax.Entmax15(dim=-1)

    def forward(self, x):
        """Return attend."""
        return self.weights(self.queries(x) @ self.keys(x).transpose(1, 2)) @ x


def build():
    """Return the model and its inputs."""
    return SparseAttention(16), (torch.randn(2, 5, 16),)
