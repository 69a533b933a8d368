"""A network that hydra instantiates from a configuration of omegaconf, which it stores."""

import hydra
import torch
from omegaconf import OmegaConf
from torch import nn

LIBRARIES = (
    "hydra-core",
    "omegaconf",
)


class Configured(nn.Module):
    """Layers from a configuration."""

    def __init__(self, config) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(map(hydra.utils.instantiate, config.layers))

    def forward(self, x):
        """Return as many columns as the configuration says."""
        for layer in self.layers:
            x = layer(x)
        return x, int(self.config.width)


def build():
    """Return the model and its inputs."""
    config = OmegaConf.create(
        {
            "width": 16,
            "layers": [
                {"_target_": "torch.nn.Linear", "in_features": 8, "out_features": "${width}"},
                {"_target_": "torch.nn.ReLU"},
                {"_target_": "torch.nn.Linear", "in_features": "${width}", "out_features": 3},
            ],
        }
    )
    return Configured(config), (torch.randn(2, 8),)
