"""A Llama of transformers, with its language model head."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

LIBRARIES = ("transformers",)
OPERATORS = "torchvision"


def build():
    """Return the model and its inputs."""
    config = LlamaConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=37,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config), (torch.randint(0, 99, (2, 7)),)
