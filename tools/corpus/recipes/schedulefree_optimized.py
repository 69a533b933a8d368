"""A network with its optimizer of schedulefree, which has a training mode."""

import torch
from schedulefree import AdamWScheduleFree
from torch import nn

LIBRARIES = ("schedulefree",)


class Trained(nn.Module):
    """A layer that refers to its optimizer and counts its steps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.steps = []
        self.optimizer = AdamWScheduleFree(self.layer.parameters(), lr=0.1)
        self.optimizer.register_step_post_hook(lambda *told: self.steps.append(len(told)))

    def forward(self, x):
        """Apply the layer."""
        return self.layer(x), len(self.steps)


def build():
    """Return the model and its inputs."""
    model = Trained(8)
    model.optimizer.train()
    model(torch.randn(4, 8))[0].square().sum().backward()
    model.optimizer.step()
    model.optimizer.eval()
    return model, (torch.randn(2, 8),)
