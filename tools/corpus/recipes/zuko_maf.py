"""A masked autoregressive flow of zuko; its output is a distribution."""

import torch
import zuko

LIBRARIES = ("zuko",)


def build():
    """Return the model and its inputs."""
    flow = zuko.flows.MAF(features=3, context=4, transforms=2, hidden_features=(16, 16))
    return flow, (torch.randn(5, 4),)
