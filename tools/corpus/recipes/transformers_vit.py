"""A vision transformer of transformers."""

import torch
from transformers import ViTConfig, ViTForImageClassification

LIBRARIES = ("transformers",)
OPERATORS = "torchvision"


def build():
    """Return the model and its inputs."""
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        image_size=32,
        patch_size=8,
    )
    return ViTForImageClassification(config), (torch.randn(2, 3, 32, 32),)
