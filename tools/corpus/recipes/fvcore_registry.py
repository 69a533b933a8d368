"""A network that a registry of fvcore builds from a configuration of yacs."""

import torch
from fvcore.common.config import CfgNode
from fvcore.common.registry import Registry
from torch import nn

LIBRARIES = ("fvcore", "yacs", "iopath")

HEADS = Registry("HEADS")


@HEADS.register()
class Head(nn.Module):
    """A layer whose width comes from its configuration."""

    def __init__(self, config: CfgNode) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.Linear(config.MODEL.WIDTH, config.MODEL.CLASSES)

    def forward(self, x):
        """Look up the class in the registry again, and return scores."""
        return self.layer(x), HEADS.get(self.config.MODEL.NAME) is type(self)


def build():
    """Return the model and its inputs."""
    config = CfgNode({"MODEL": {"NAME": "Head", "WIDTH": 8, "CLASSES": 3}})
    config.freeze()
    return HEADS.get(config.MODEL.NAME)(config), (torch.randn(2, 8),)
