"""A GraphSAGE of torch_geometric."""

import torch
from torch_geometric.nn import GraphSAGE

LIBRARIES = ("torch-geometric",)


def build():
    """Return the model and its inputs."""
    model = GraphSAGE(in_channels=8, hidden_channels=16, num_layers=2, out_channels=3)
    edges = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])
    return model, (torch.randn(5, 8), edges)
