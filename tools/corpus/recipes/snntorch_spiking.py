"""Spiking neurons of snntorch, with a surrogate gradient that is a closure."""

import snntorch
import torch
from snntorch import surrogate
from torch import nn

LIBRARIES = ("snntorch",)


class Spiking(nn.Module):
    """A layer of leaky neurons over some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.neuron = snntorch.Leaky(beta=0.9, spike_grad=surrogate.fast_sigmoid(slope=25))

    def forward(self, x):
        """Return the number of spikes of each neuron."""
        membrane = self.neuron.init_leaky()
        count = 0
        for step in x:
            spikes, membrane = self.neuron(self.layer(step), membrane)
            count = count + spikes
        return count, membrane


def build():
    """Return the model and its inputs."""
    return Spiking(), (torch.randn(5, 2, 4),)
