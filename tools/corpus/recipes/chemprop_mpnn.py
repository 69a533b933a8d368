"""A message-passing network of chemprop, with a molecule that rdkit parsed as its input."""

import torch
from chemprop.data import BatchMolGraph
from chemprop.featurizers import SimpleMoleculeMolGraphFeaturizer
from chemprop.models import MPNN
from chemprop.nn import BondMessagePassing, MeanAggregation, RegressionFFN
from rdkit import Chem
from torch import nn

LIBRARIES = ("chemprop",)
COMPILED = ("rdkit",)
OPERATORS = "torchvision"


class Property(nn.Module):
    """A property of fixed molecules, scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.featurizer = SimpleMoleculeMolGraphFeaturizer()
        d_v, d_e = self.featurizer.shape
        self.net = MPNN(
            BondMessagePassing(d_v=d_v, d_e=d_e, d_h=16, depth=2),
            MeanAggregation(),
            RegressionFFN(input_dim=16, hidden_dim=16),
        )

    def forward(self, scale):
        """Return the estimates."""
        molecules = map(Chem.MolFromSmiles, ("CCO", "c1ccccc1"))
        return self.net(BatchMolGraph([self.featurizer(m) for m in molecules])) * scale


def build():
    """Return the model and its inputs."""
    return Property(), (torch.randn(1),)
