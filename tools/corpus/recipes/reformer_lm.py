"""The language model of reformer-pytorch, with full attention."""

import torch
from reformer_pytorch import ReformerLM

LIBRARIES = ("reformer-pytorch",)


def build():
    """Return the model and its inputs."""
    model = ReformerLM(
        num_tokens=99, dim=32, depth=2, max_seq_len=32, heads=4, bucket_size=8, use_full_attn=True
    )
    return model, (torch.randint(0, 99, (2, 32)),)
