"""A language model of local-attention."""

import torch
from local_attention import LocalTransformer

LIBRARIES = ("local-attention",)


def build():
    """Return the model and its inputs."""
    model = LocalTransformer(
        num_tokens=99, dim=16, depth=2, max_seq_len=32, local_attn_window_size=8, heads=2
    )
    return model, (torch.randint(0, 99, (1, 32)),)
