"""A tagger with the conditional random field of pytorch-crf."""

import torch
from torch import nn
from torchcrf import CRF

LIBRARIES = ("pytorch-crf",)


class Tagger(nn.Module):
    """Scores and the best tags."""

    def __init__(self, inputs: int, tags: int) -> None:
        super().__init__()
        self.scores = nn.Linear(inputs, tags)
        self.field = CRF(tags, batch_first=True)

    def forward(self, x, tags):
        """Return the likelihood of the tags, and the most likely tags."""
        scores = self.scores(x)
        return self.field(scores, tags), self.field.decode(scores)


def build():
    """Return the model and its inputs."""
    return Tagger(8, 4), (torch.randn(2, 5, 8), torch.randint(0, 4, (2, 5)))
