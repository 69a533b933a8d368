"""Registration of the hooks of each row: with torch's API, or attached as a spec."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge, register_multi_grad_hook
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

import modpack.hooks
from matrixlib.net import Net

Register = Callable[..., Any]

NODES: list[Any] = []
"""Graph nodes that are kept alive, as for the original."""


@dataclass(frozen=True)
class Row:
    """One row of the matrix.

    Attributes:
        register: Function of the model, its optimizer, the hook, and optionally ``prepend``.
        prepends: Whether the API has ``prepend``.
        at_once: Whether both hooks are registered together.
    """

    register: Register
    prepends: bool = False
    at_once: bool = False


def _on_middle(method: str, **flags: Any) -> Register:
    def register(net: Net, optimizer: Any, hook: Any, **prepend: bool) -> Any:
        return getattr(net.middle, method)(hook, **flags, **prepend)

    return register


def _on_tensor(method: str) -> Register:
    return lambda net, optimizer, hook: getattr(net.middle.gain, method)(hook)


def _on_accumulator(method: str) -> Register:
    """Register on the node that accumulates a parameter's gradients, and keep the node alive."""

    def register(net: Net, optimizer: Any, hook: Any) -> Any:
        NODES.append(get_gradient_edge(net.middle.gain).node)
        return getattr(NODES[-1], method)(hook)

    return register


def _on_optimizer(method: str) -> Register:
    return lambda net, optimizer, hook, **prepend: getattr(optimizer, method)(hook, **prepend)


def _on_process(module: Any, function: str) -> Register:
    return lambda net, optimizer, hook: getattr(module, function)(hook)


def _on_group(mode: Any) -> Register:
    def register(net: Net, optimizer: Any, hook: Any) -> Any:
        tensors = [net.last.weight, net.middle.gain, net.first.weight]  # not in pickle's order
        return register_multi_grad_hook(tensors, hook, mode=mode)

    return register


def _attached(spec: type, *paths: Any) -> Register:
    return lambda net, optimizer, *hooks: modpack.hooks.attach(net, spec(*paths, *hooks))


def _rows() -> dict[str, Row]:
    rows: dict[str, Row] = {}
    flagged = {"forward_pre": ["with_kwargs"], "forward": ["with_kwargs", "always_call"]}
    for kind in ("forward_pre", "forward", "full_backward_pre", "full_backward"):
        method = f"register_{kind}_hook"
        rows[kind] = Row(_on_middle(method), prepends=True)
        for flag in flagged.get(kind, []):
            rows[f"{kind}, {flag}"] = Row(_on_middle(method, **{flag: True}), prepends=True)
    others = {
        "backward": _on_middle("register_backward_hook"),
        "state_dict_pre": _on_middle("register_state_dict_pre_hook"),
        # torch marks hooks of the public method, and rejects them in the private method later
        "state_dict_post_private": _on_middle("_register_state_dict_hook"),
        "state_dict_post": _on_middle("register_state_dict_post_hook"),
        # the public method passes the module to the hook; the private one does so only on request
        "load_state_dict_pre": _on_middle("_register_load_state_dict_pre_hook"),
        "load_state_dict_pre, with_module": _on_middle("register_load_state_dict_pre_hook"),
        "load_state_dict_post": _on_middle("register_load_state_dict_post_hook"),
        "tensor": _on_tensor("register_hook"),
        "post_accumulate_grad": _on_tensor("register_post_accumulate_grad_hook"),
        "accumulate_grad_pre": _on_accumulator("register_prehook"),
        "accumulate_grad": _on_accumulator("register_hook"),
        "multi_grad": _on_group("all"),
        "multi_grad, any": _on_group("any"),
    }
    rows.update((name, Row(register)) for name, register in others.items())
    for event in ("step", "state_dict", "load_state_dict"):
        for moment in ("pre", "post"):
            register = _on_optimizer(f"register_{event}_{moment}_hook")
            rows[f"optimizer.{event}_{moment}"] = Row(register, prepends=event != "step")
    for name in ("forward_pre", "forward", "full_backward_pre", "full_backward", "backward"):
        rows[f"global.{name}"] = Row(_on_process(modules, f"register_module_{name}_hook"))
    for part in ("buffer", "module", "parameter"):
        name = f"{part}_registration"
        rows[f"global.{name}"] = Row(_on_process(modules, f"register_module_{name}_hook"))
    for moment in ("pre", "post"):
        name = f"optimizer_step_{moment}"
        rows[f"global.{name}"] = Row(_on_process(optimizers, f"register_{name}_hook"))
    hooks = modpack.hooks
    return {
        **rows,
        "graph.output_grad": Row(_attached(hooks.OutputGrad, "middle")),
        "graph.node": Row(_attached(hooks.NodeHook, "middle")),
        "graph.node_pre": Row(_attached(hooks.NodePreHook, "middle")),
        "graph.saved_tensors": Row(_attached(hooks.SavedTensors, "middle"), at_once=True),
        "graph.after_backward": Row(_attached(hooks.AfterBackward)),
        "graph.multi_grad": Row(_attached(hooks.MultiGrad, ("last", "first"))),
    }


ROWS = _rows()
"""Rows by name, in the order of the table."""

torch.set_num_threads(1)
