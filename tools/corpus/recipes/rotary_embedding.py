"""Rotary positions of rotary-embedding-torch in an attention."""

import torch
from rotary_embedding_torch import RotaryEmbedding
from torch import nn

LIBRARIES = ("rotary-embedding-torch",)


class Attention(nn.Module):
    """Self-attention with rotary positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.positions = RotaryEmbedding(width // heads)

    def forward(self, x):
        """Return attend."""
        parts = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        queries, keys = map(self.positions.rotate_queries_or_keys, parts[:2])
        return nn.functional.scaled_dot_product_attention(queries, keys, parts[2])


def build():
    """Return the model and its inputs."""
    return Attention(32, 4), (torch.randn(2, 7, 32),)
