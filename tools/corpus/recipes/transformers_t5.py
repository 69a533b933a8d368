"""A T5 of transformers, encoder and decoder, in a custom module."""

import torch
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

LIBRARIES = ("transformers",)
OPERATORS = "torchvision"


class Translator(nn.Module):
    """Scores of the next tokens."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.t5 = T5ForConditionalGeneration(config)

    def forward(self, source, target):
        """Return the scores."""
        return self.t5(input_ids=source, decoder_input_ids=target).logits


def build():
    """Return the model and its inputs."""
    config = T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4)
    return Translator(config), (torch.randint(0, 99, (2, 7)), torch.randint(0, 99, (2, 5)))
