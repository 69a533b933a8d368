"""The model, and its observable results."""

from typing import Any

import torch

from matrixlib import effects


class Scale(torch.nn.Module):
    """One multiplication, so that legacy backward hooks see the gradients of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.tensor([1.5, -0.5, 2.0, 1.0]))
        self.register_buffer("scale", torch.tensor([1.0, 2.0]))

    def forward(self, x: torch.Tensor, bias: Any = 0.0) -> torch.Tensor:
        """Multiply. The bias is zero unless a hook changes it."""
        return (x + bias) * self.gain if torch.is_tensor(bias) and bias.any() else x * self.gain


class Net(torch.nn.Module):
    """The model, whose methods are hooks too."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 4)
        self.middle = Scale()
        self.last = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply three layers."""
        return self.last(self.middle(self.first(x), bias=torch.zeros(4)))

    def double(self, *args: Any, **kwargs: Any) -> Any:
        """A hook."""
        return effects.apply("double", float(self.last.bias.sum()), args, kwargs)

    def shift(self, *args: Any, **kwargs: Any) -> Any:
        """A hook."""
        return effects.apply("shift", float(self.last.bias.sum()), args, kwargs)


def new_model() -> tuple[Net, torch.optim.Optimizer]:
    """Return a new model with its optimizer, always with the same weights."""
    # Only the generator that is used: seeding those of GPUs formats the whole stack each time.
    torch.default_generator.manual_seed(0)
    net = Net()
    return net, torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)


def observe(row: str, net: Net, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Train for two steps with a save between them; return all numbers that hooks can change."""
    effects.ROW[0] = row
    effects.LOG.clear()
    effects.TALLY[0] = 0.0
    numbers: list[Any] = []
    for step in (1, 2):
        numbers += _trained(net, optimizer, torch.arange(6.0).reshape(2, 3) * 0.1 * step)
        numbers += _saved(net, optimizer)
        numbers += _extended()
    return {"numbers": numbers, "log": list(effects.LOG), "tally": effects.TALLY[0]}


def _trained(net: Net, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> list[Any]:
    optimizer.zero_grad()
    output = net(x)
    (output**2).sum().backward()
    gradients = [None if p.grad is None else p.grad.tolist() for p in net.parameters()]
    optimizer.step()
    return [output.tolist(), gradients, [p.tolist() for p in net.parameters()]]


def _saved(net: Net, optimizer: torch.optim.Optimizer) -> list[Any]:
    state = net.state_dict()
    saved = {name: tensor.tolist() for name, tensor in state.items()}
    net.load_state_dict(state)
    rates = optimizer.state_dict()
    saved_rate = float(rates["param_groups"][0]["lr"])
    optimizer.load_state_dict(rates)
    rate = float(optimizer.param_groups[0]["lr"])
    return [saved, net.middle.scale.tolist(), saved_rate, rate]


def _extended() -> list[Any]:
    holder = torch.nn.Module()
    holder.register_buffer("buffer", torch.ones(2))
    holder.register_parameter("parameter", torch.nn.Parameter(torch.ones(2)))
    holder.child = Scale()
    tensors = (holder.buffer, holder.parameter, holder.child.scale, holder.child.gain)
    return [tensor.tolist() for tensor in tensors]
