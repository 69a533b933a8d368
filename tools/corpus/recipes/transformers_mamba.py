"""A Mamba of transformers, which computes its scan in Python."""

import torch
from transformers import MambaConfig, MambaModel

LIBRARIES = ("transformers",)
OPERATORS = "torchvision"


def build():
    """Return the model and its inputs."""
    config = MambaConfig(vocab_size=99, hidden_size=32, state_size=4, num_hidden_layers=2)
    return MambaModel(config), (torch.randint(0, 99, (2, 7)),)
