"""How hooks of each row are registered: with torch's own API, or attached as a spec."""

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
"""Nodes of the graph that stay alive, as those of an original do."""


@dataclass(frozen=True)
class Row:
    """One row of the matrix.

    Attributes:
        kind: the kind of hook, as specs call it.
        register: takes the model, its optimizer and the hook, and perhaps ``prepend``.
        prepends: whether a hook can be put before those that are there.
        at_once: whether the two hooks are registered together.
    """

    kind: str
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
    """On the node that accumulates a parameter's gradients: torch drops it unless it is kept."""

    def register(net: Net, optimizer: Any, hook: Any) -> Any:
        NODES.append(get_gradient_edge(net.middle.gain).node)
        return getattr(NODES[-1], method)(hook)

    return register


def _on_optimizer(method: str) -> Register:
    return lambda net, optimizer, hook, **prepend: getattr(optimizer, method)(hook, **prepend)


def _on_process(home: Any, function: str) -> Register:
    return lambda net, optimizer, hook: getattr(home, function)(hook)


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
        rows[kind] = Row(kind, _on_middle(method), prepends=True)
        for flag in flagged.get(kind, []):
            register = _on_middle(method, **{flag: True})
            rows[f"{kind}, {flag}"] = Row(kind, register, prepends=True)
    for kind in ("backward", "state_dict_pre"):
        rows[kind] = Row(kind, _on_middle(f"register_{kind}_hook"))
    # torch marks what was registered with the public method, and refuses it here from then on
    rows["state_dict_post_private"] = Row(
        "state_dict_post_private", _on_middle("_register_state_dict_hook")
    )
    rows["state_dict_post"] = Row("state_dict_post", _on_middle("register_state_dict_post_hook"))
    # the public method passes the module on, the private one does not, unless told to
    rows["load_state_dict_pre"] = Row(
        "load_state_dict_pre", _on_middle("_register_load_state_dict_pre_hook")
    )
    rows["load_state_dict_pre, with_module"] = Row(
        "load_state_dict_pre", _on_middle("register_load_state_dict_pre_hook")
    )
    rows["load_state_dict_post"] = Row(
        "load_state_dict_post", _on_middle("register_load_state_dict_post_hook")
    )
    rows["tensor"] = Row("tensor", _on_tensor("register_hook"))
    rows["post_accumulate_grad"] = Row(
        "post_accumulate_grad", _on_tensor("register_post_accumulate_grad_hook")
    )
    for kind, method in (
        ("accumulate_grad_pre", "register_prehook"),
        ("accumulate_grad", "register_hook"),
    ):
        rows[kind] = Row(kind, _on_accumulator(method))
    rows["multi_grad"] = Row("multi_grad", _on_group("all"))
    rows["multi_grad, any"] = Row("multi_grad", _on_group("any"))
    for event in ("step", "state_dict", "load_state_dict"):
        for moment in ("pre", "post"):
            name = f"{event}_{moment}"
            register = _on_optimizer(f"register_{name}_hook")
            rows[f"optimizer.{name}"] = Row(f"optimizer.{name}", register, event != "step")
    for name in ("forward_pre", "forward", "full_backward_pre", "full_backward", "backward"):
        register = _on_process(modules, f"register_module_{name}_hook")
        rows[f"global.{name}"] = Row(f"global.{name}", register)
    for part in ("buffer", "module", "parameter"):
        register = _on_process(modules, f"register_module_{part}_registration_hook")
        rows[f"global.{part}_registration"] = Row(f"global.{part}_registration", register)
    for moment in ("pre", "post"):
        register = _on_process(optimizers, f"register_optimizer_step_{moment}_hook")
        rows[f"global.optimizer_step_{moment}"] = Row(f"global.optimizer_step_{moment}", register)
    return {**rows, **_graph_rows()}


def _graph_rows() -> dict[str, Row]:
    hooks = modpack.hooks
    one = {"graph.output_grad": hooks.OutputGrad, "graph.node": hooks.NodeHook}
    rows = {kind: Row(kind, _attached(spec, "middle")) for kind, spec in one.items()}
    rows["graph.node_pre"] = Row("graph.node_pre", _attached(hooks.NodePreHook, "middle"))
    rows["graph.saved_tensors"] = Row(
        "graph.saved_tensors", _attached(hooks.SavedTensors, "middle"), at_once=True
    )
    rows["graph.after_backward"] = Row("graph.after_backward", _attached(hooks.AfterBackward))
    several = _attached(hooks.MultiGrad, ("last", "first"))
    rows["graph.multi_grad"] = Row("graph.multi_grad", several)
    return rows


ROWS = _rows()
"""By name, in the order of the table."""

torch.set_num_threads(1)
