"""The network of TabNet."""

import torch
from pytorch_tabnet.tab_network import TabNet

LIBRARIES = ("pytorch-tabnet",)


def build():
    """Return the model and its inputs."""
    model = TabNet(input_dim=6, output_dim=3, n_d=8, n_a=8, group_attention_matrix=torch.eye(6))
    return model, (torch.randn(8, 6),)
