"""A MACE potential of mace-torch, made of compiled parts of e3nn."""

import torch
from e3nn import o3
from mace.modules import MACE, RealAgnosticInteractionBlock, RealAgnosticResidualInteractionBlock
from torch import nn

LIBRARIES = ("mace-torch", "e3nn")
OPERATORS = "torchvision"


class Energy(nn.Module):
    """Only the energy of the network's outputs."""

    def __init__(self, net: MACE) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch):
        """Return one energy per structure."""
        return self.net(dict(batch), compute_force=False)["energy"]


def build():
    """Return the model and its inputs."""
    net = MACE(
        r_max=5.0,
        num_bessel=4,
        num_polynomial_cutoff=5,
        max_ell=1,
        interaction_cls=RealAgnosticResidualInteractionBlock,
        interaction_cls_first=RealAgnosticInteractionBlock,
        num_interactions=1,
        num_elements=2,
        hidden_irreps=o3.Irreps("4x0e"),
        MLP_irreps=o3.Irreps("4x0e"),
        atomic_energies=torch.tensor([-1.0, -2.0]),
        avg_num_neighbors=2.0,
        atomic_numbers=[1, 8],
        correlation=1,
        gate=torch.nn.functional.silu,
    )
    batch = {
        "positions": torch.randn(3, 3),
        "node_attrs": torch.eye(2)[[1, 0, 0]],
        "edge_index": torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]]),
        "shifts": torch.zeros(6, 3),
        "unit_shifts": torch.zeros(6, 3),
        "cell": torch.eye(3),
        "batch": torch.zeros(3, dtype=torch.long),
        "ptr": torch.tensor([0, 3]),
        "head": torch.zeros(1, dtype=torch.long),
    }
    return Energy(net), (batch,)
