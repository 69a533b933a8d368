"""Points of a Poincaré ball of geoopt, parameters of a class of its own, and their optimizer."""

import geoopt
import torch
from torch import nn

LIBRARIES = ("geoopt",)


class Hyperbolic(nn.Module):
    """Distances to learned points."""

    def __init__(self, points: int, width: int) -> None:
        super().__init__()
        self.ball = geoopt.PoincareBall()
        self.points = geoopt.ManifoldParameter(
            self.ball.random(points, width, std=0.1), manifold=self.ball
        )
        self.optimizer = geoopt.optim.RiemannianAdam([self.points], lr=0.1)

    def forward(self, x):
        """Return one distance per input and point."""
        return self.ball.dist(self.ball.expmap0(x)[:, None], self.points)


def build():
    """Return the model and its inputs."""
    model = Hyperbolic(3, 4)
    model(torch.randn(2, 4)).sum().backward()
    model.optimizer.step()
    return model, (torch.randn(2, 4),)
