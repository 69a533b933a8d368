"""BERT of transformers."""

import torch
from transformers import BertConfig, BertModel

LIBRARIES = ("transformers",)
OPERATORS = "torchvision"


def build():
    """Return the model and its inputs."""
    config = BertConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
    )
    return BertModel(config), (torch.randint(0, 99, (2, 7)),)
