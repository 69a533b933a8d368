"""Effects of the hooks. Each changes numbers, and the result shows the order of two hooks.

A hook takes one of two steps that do not commute: it doubles a value or adds one to it. The amount
makes the step depend on an object that the hook refers to, such as a collector or a parameter.
"""

from collections.abc import Callable
from typing import Any

import torch

LOG: list[str] = []
"""The steps, in the order in which they ran."""

TALLY: list[float] = [0.0]
"""The value that hooks change if they cannot change the model."""

ROW: list[str] = [""]
"""The current row of the matrix. The hooks of all rows have the same source."""

Change = Callable[[Any], Any]


def apply(step: str, amount: float, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Take a hook's step with the effect of the current row."""
    LOG.append(step)

    def change(value: Any) -> Any:
        return value * (2.0 + amount) if step == "double" else value + (1.0 + amount)

    return EFFECTS[ROW[0]](change, *args, **kwargs)


def _inputs(change: Change, module: Any, args: Any) -> Any:
    return (change(args[0]), *args[1:])


def _inputs_and_kwargs(change: Change, module: Any, args: Any, kwargs: Any) -> Any:
    return args, {"bias": change(kwargs["bias"])}


def _output(change: Change, module: Any, args: Any, output: Any) -> Any:
    return change(output)


def _output_by_kwargs(change: Change, module: Any, args: Any, kwargs: Any, output: Any) -> Any:
    return change(output) + kwargs["bias"]


def _gradients(change: Change, module: Any, gradients: Any, *outer: Any) -> Any:
    return tuple(None if each is None else change(each) for each in gradients)


def _own_buffer(change: Change, module: Any, *rest: Any) -> None:
    module.scale.copy_(change(module.scale))


def _saved_buffer(change: Change, module: Any, state: Any, prefix: str, *rest: Any) -> None:
    state[f"{prefix}scale"] = change(state[f"{prefix}scale"])


def _loaded_buffer(change: Change, state: Any, prefix: str, *rest: Any) -> None:
    state[f"{prefix}scale"] = change(state[f"{prefix}scale"])


def _gradient(change: Change, gradient: Any) -> Any:
    return change(gradient)


def _accumulated(change: Change, parameter: Any) -> None:
    parameter.grad = change(parameter.grad)


def _tallied_gradients(change: Change, gradients: Any) -> None:
    weighted = sum(n * float(each.sum()) for n, each in enumerate(gradients, 1))
    TALLY[0] = float(change(TALLY[0] + weighted))


def _tallied_gradient(change: Change, gradient: Any) -> None:
    TALLY[0] = float(change(TALLY[0] + float(gradient.sum())))


def _tallied(change: Change) -> None:
    TALLY[0] = float(change(TALLY[0] + 1.0))


def _optimizer_gradients(change: Change, optimizer: Any, args: Any, kwargs: Any) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        if parameter.grad is not None:
            parameter.grad = change(parameter.grad)


def _optimized(change: Change, optimizer: Any, args: Any, kwargs: Any) -> None:
    with torch.no_grad():
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.copy_(change(parameter))


def _own_rate(change: Change, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = change(optimizer.param_groups[0]["lr"])


def _saved_rate(change: Change, optimizer: Any, state: Any) -> None:
    state["param_groups"][0]["lr"] = change(state["param_groups"][0]["lr"])


def _only_for_scales(effect: Callable[..., Any]) -> Callable[..., Any]:
    def limited(change: Change, module: Any, *args: Any) -> Any:
        return effect(change, module, *args) if type(module).__name__ == "Scale" else None

    return limited


def _registered_buffer(change: Change, module: Any, name: str, buffer: Any) -> Any:
    return change(buffer)


def _registered_module(change: Change, module: Any, name: str, child: Any) -> None:
    if type(child).__name__ == "Scale":
        child.scale.copy_(change(child.scale))


def _registered_parameter(change: Change, module: Any, name: str, parameter: Any) -> Any:
    return torch.nn.Parameter(change(parameter.detach()))


def _node_gradients(change: Change, gradients: Any, *outer: Any) -> Any:
    return tuple(None if each is None else change(each) for each in gradients)


EFFECTS: dict[str, Callable[..., Any]] = {
    "forward_pre": _inputs,
    "forward_pre, with_kwargs": _inputs_and_kwargs,
    "forward": _output,
    "forward, with_kwargs": _output_by_kwargs,
    "forward, always_call": _output,
    "full_backward_pre": _gradients,
    "full_backward": _gradients,
    "backward": _gradients,
    "state_dict_pre": _own_buffer,
    "state_dict_post": _saved_buffer,
    "state_dict_post_private": _saved_buffer,
    "load_state_dict_pre": _loaded_buffer,
    "load_state_dict_pre, with_module": lambda change, module, *rest: _loaded_buffer(change, *rest),
    "load_state_dict_post": _own_buffer,
    "tensor": _gradient,
    "post_accumulate_grad": _accumulated,
    "accumulate_grad_pre": _node_gradients,
    "accumulate_grad": lambda change, gradients, incoming: _tallied_gradients(change, incoming),
    "multi_grad": _tallied_gradients,
    "multi_grad, any": _tallied_gradient,
    "optimizer.step_pre": _optimizer_gradients,
    "optimizer.step_post": _optimized,
    "optimizer.state_dict_pre": _own_rate,
    "optimizer.state_dict_post": _saved_rate,
    "optimizer.load_state_dict_pre": _saved_rate,
    "optimizer.load_state_dict_post": _own_rate,
    "global.forward_pre": _only_for_scales(_inputs),
    "global.forward": _only_for_scales(_output),
    "global.full_backward_pre": _only_for_scales(_gradients),
    "global.full_backward": _only_for_scales(_gradients),
    "global.backward": _only_for_scales(_gradients),
    "global.buffer_registration": _registered_buffer,
    "global.module_registration": _registered_module,
    "global.parameter_registration": _registered_parameter,
    "global.optimizer_step_pre": _optimizer_gradients,
    "global.optimizer_step_post": _optimized,
    "graph.output_grad": _gradient,
    "graph.node": _node_gradients,
    "graph.node_pre": _node_gradients,
    "graph.saved_tensors": _gradient,
    "graph.after_backward": _tallied,
    "graph.multi_grad": _tallied_gradients,
}
"""Effects by row."""
