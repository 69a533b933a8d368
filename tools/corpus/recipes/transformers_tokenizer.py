"""A module with a tokenizer of transformers, which is a native extension."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import PreTrainedTokenizerFast

LIBRARIES = ("transformers",)
OPERATORS = "torchvision"


class TextEncoder(nn.Module):
    """Embeds two fixed sentences; the tokenizer is a part of the model."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.embedding = nn.Embedding(len(tokenizer), 4)

    def forward(self, weights):
        """Return weighted mean embeddings."""
        sentences = ["a photo", "a photo of a dog and cat"]
        tokens = self.tokenizer(sentences, padding=True, return_tensors="pt")
        return self.embedding(tokens["input_ids"]).mean(1) * weights


def build():
    """Return the model and its inputs."""
    words = {"[UNK]": 0, "[PAD]": 1, "a": 2, "photo": 3, "of": 4, "dog": 5}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]")
    return TextEncoder(fast), (torch.randn(2, 4),)
