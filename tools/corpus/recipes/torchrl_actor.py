"""An actor of torchrl: a distribution over actions from a TensorDict."""

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.modules import MLP, NormalParamExtractor, ProbabilisticActor, TanhNormal

LIBRARIES = ()
COMPILED = ("torchrl", "tensordict")


class Policy(nn.Module):
    """Observations to actions."""

    def __init__(self) -> None:
        super().__init__()
        net = nn.Sequential(MLP(4, 4, num_cells=[8]), NormalParamExtractor())
        self.actor = ProbabilisticActor(
            TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
            in_keys=["loc", "scale"],
            distribution_class=TanhNormal,
            return_log_prob=True,
        )

    def forward(self, observation):
        """Return one action per row."""
        return self.actor(TensorDict({"observation": observation}, [len(observation)]))["action"]


def build():
    """Return the model and its inputs."""
    return Policy(), (torch.randn(2, 4),)
