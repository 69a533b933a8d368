"""A neural spline flow of normflows."""

import normflows
import torch

LIBRARIES = ("normflows",)


def build():
    """Return the model and its inputs."""
    base = normflows.distributions.DiagGaussian(4)
    steps = [
        layer
        for _ in range(2)
        for layer in (
            normflows.flows.AutoregressiveRationalQuadraticSpline(4, 1, 16),
            normflows.flows.LULinearPermute(4),
        )
    ]
    return normflows.NormalizingFlow(base, steps), (torch.randn(5, 4),)
