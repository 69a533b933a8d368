"""A SentenceTransformer from a small BERT, without a tokenizer."""

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling
from torch import nn
from transformers import BertConfig, BertModel

LIBRARIES = (
    "sentence-transformers",
    "transformers",
)
OPERATORS = "torchvision"


class Encoder(nn.Module):
    """Token embeddings, under the name that pooling expects."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config)

    def forward(self, features):
        """Return the features, and the embeddings."""
        found = self.bert(features["input_ids"], attention_mask=features["attention_mask"])
        return {**features, "token_embeddings": found.last_hidden_state}


def build():
    """Return the model and its inputs."""
    config = BertConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
    )
    layers = [Encoder(config), Pooling(32), Dense(32, 16), Normalize()]
    tokens = {
        "input_ids": torch.randint(0, 99, (2, 7)),
        "attention_mask": torch.ones(2, 7, dtype=torch.long),
    }
    return SentenceTransformer(modules=layers, device="cpu"), (tokens,)
