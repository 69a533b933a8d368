"""A GPT-2 of transformers, chosen by its configuration."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

LIBRARIES = ("transformers",)
OPERATORS = "torchvision"


def build():
    """Return the model and its inputs."""
    config = AutoConfig.for_model(
        "gpt2", vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64
    )
    return AutoModelForCausalLM.from_config(config), (torch.randint(0, 99, (2, 7)),)
