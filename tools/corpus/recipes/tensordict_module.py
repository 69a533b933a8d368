"""Modules that read and write the keys of a TensorDict, which has native extensions."""

import torch
from tensordict import TensorDict, TensorDictParams
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

LIBRARIES = ()
COMPILED = ("tensordict",)


class Keyed(nn.Module):
    """Two layers by key, and parameters in a TensorDict."""

    def __init__(self) -> None:
        super().__init__()
        self.net = TensorDictSequential(
            TensorDictModule(nn.Linear(4, 8), in_keys=["x"], out_keys=["hidden"]),
            TensorDictModule(nn.Linear(8, 2), in_keys=["hidden"], out_keys=[("out", "y")]),
        )
        self.scales = TensorDictParams(TensorDict({"y": torch.ones(2)}, []))

    def forward(self, x):
        """Return the scaled value of the last key."""
        found = self.net(TensorDict({"x": x}, batch_size=x.shape[:1]))
        return found["out", "y"] * self.scales["y"]


def build():
    """Return the model and its inputs."""
    return Keyed(), (torch.randn(2, 4),)
