"""A residual vector quantizer of vector-quantize-pytorch."""

import torch
from vector_quantize_pytorch import ResidualVQ

LIBRARIES = ("vector-quantize-pytorch",)


def build():
    """Return the model and its inputs."""
    model = ResidualVQ(dim=16, num_quantizers=2, codebook_size=32)
    return model, (torch.randn(1, 8, 16),)
