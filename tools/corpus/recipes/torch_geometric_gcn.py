"""Graph convolutions of torch_geometric in a custom module."""

import torch
from torch import nn
from torch_geometric.nn import GATConv, GCNConv, global_mean_pool

LIBRARIES = ("torch-geometric",)


class GraphNet(nn.Module):
    """Two graph layers, pooled."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first = GCNConv(inputs, hidden)
        self.second = GATConv(hidden, hidden, heads=2)
        self.head = nn.Linear(2 * hidden, classes)

    def forward(self, x, edge_index, batch):
        """Return class scores of each graph."""
        x = self.first(x, edge_index).relu()
        return self.head(global_mean_pool(self.second(x, edge_index), batch))


def build():
    """Return the model and its inputs."""
    edges = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])
    return GraphNet(8, 16, 3), (torch.randn(5, 8), edges, torch.zeros(5, dtype=torch.long))
