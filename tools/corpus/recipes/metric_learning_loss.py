"""A loss of pytorch-metric-learning with a miner and a reducer."""

import torch
from pytorch_metric_learning import distances, losses, miners, reducers
from torch import nn

LIBRARIES = ("pytorch-metric-learning",)


class Embedder(nn.Module):
    """An embedding and its loss."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, width)
        distance = distances.CosineSimilarity()
        self.miner = miners.MultiSimilarityMiner(epsilon=0.2)
        self.loss = losses.TripletMarginLoss(
            distance=distance, reducer=reducers.ThresholdReducer(low=0)
        )

    def forward(self, x, labels):
        """Return the loss."""
        found = self.layer(x)
        return self.loss(found, labels, self.miner(found, labels))


def build():
    """Return the model and its inputs."""
    return Embedder(8, 4), (torch.randn(6, 8), torch.tensor([0, 0, 1, 1, 2, 2]))
