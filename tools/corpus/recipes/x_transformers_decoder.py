"""A decoder of x-transformers with rotary positions."""

import torch
from x_transformers import Decoder, TransformerWrapper

LIBRARIES = ("x-transformers",)


def build():
    """Return the model and its inputs."""
    model = TransformerWrapper(
        num_tokens=99,
        max_seq_len=32,
        attn_layers=Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, rotary_pos_emb=True),
    )
    return model, (torch.randint(0, 99, (2, 7)),)
