"""A RoBERTa of curated-transformers, configured by dataclasses."""

import torch
from curated_transformers.layers import AttentionMask
from curated_transformers.models import RoBERTaConfig, RoBERTaEncoder
from torch import nn

LIBRARIES = ("curated-transformers",)


class Tagger(nn.Module):
    """Piece identifiers to vectors."""

    def __init__(self, config: RoBERTaConfig) -> None:
        super().__init__()
        self.encoder = RoBERTaEncoder(config)

    def forward(self, pieces):
        """Return the last layer's vectors."""
        mask = AttentionMask(torch.ones_like(pieces, dtype=torch.bool))
        return self.encoder(pieces, mask).last_hidden_layer_state


def build():
    """Return the model and its inputs."""
    config = RoBERTaConfig(
        embedding_width=16,
        hidden_width=16,
        intermediate_width=32,
        n_attention_heads=2,
        n_hidden_layers=1,
        n_pieces=99,
        n_positions=32,
    )
    return Tagger(config), (torch.randint(2, 99, (2, 7)),)
