"""The language model of performer-pytorch."""

import torch
from performer_pytorch import PerformerLM

LIBRARIES = ("performer-pytorch",)


def build():
    """Return the model and its inputs."""
    model = PerformerLM(
        num_tokens=99, max_seq_len=32, dim=32, depth=2, heads=4, dim_head=8, causal=False
    )
    return model, (torch.randint(0, 99, (2, 32)),)
