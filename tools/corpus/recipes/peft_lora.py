"""A BERT of transformers with low-rank adapters of peft."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertModel

LIBRARIES = (
    "peft",
    "transformers",
)
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
    adapters = LoraConfig(r=4, target_modules=["query", "value"], init_lora_weights=False)
    return get_peft_model(BertModel(config), adapters), (torch.randint(0, 99, (2, 7)),)
