"""Hooks on the graph nodes that accumulate the gradients of leaf tensors.

torch creates such a node when a graph needs it, and drops it with the last graph, together with its
hooks. Code that registers such hooks must keep the node alive. After loading, no code does, and a
table that kept the node would keep the tensor forever: the node refers to the tensor where Python's
garbage collector cannot see it. The hooks are therefore stored in one of the tensor's own hooks,
which registers them on the node when the node is about to run.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import TensorWeakRef

BEFORE: Final = "accumulate_grad_pre"
AFTER: Final = "accumulate_grad"

_REGISTERS = {BEFORE: "register_prehook", AFTER: "register_hook"}


class NodeKeeper:
    """A tensor hook that registers hooks on the node that accumulates the tensor's gradients.

    Tensor hooks run first on that node, so the other hooks are registered in time.

    Attributes:
        tables: The hooks by their ids, for each moment.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tables: dict[str, OrderedDict[int, Any]] = {each: OrderedDict() for each in _REGISTERS}
        self._tensor = TensorWeakRef(tensor)
        self._on_node: list[RemovableHandle] = []
        self._lock = threading.Lock()  # two concurrent backward passes may share a node

    def __call__(self, grad: torch.Tensor) -> None:
        tensor = self._tensor()
        with self._lock:
            if tensor is not None and not any(each.hooks_dict_ref() for each in self._on_node):
                self._on_node = list(self._register_on(*_get_nodes([tensor])))

    def _register_on(self, node: Any) -> Iterator[RemovableHandle]:
        for moment, method in _REGISTERS.items():
            yield getattr(node, method)(_Runner(moment, self.tables[moment]))


class _Runner:
    """The hooks of one moment, combined into one hook of a node."""

    def __init__(self, moment: str, table: OrderedDict[int, Any]) -> None:
        self.table = table
        self._is_before = moment == BEFORE

    def __call__(self, changed: Any, *given: Any) -> Any:
        """Run the hooks, each with the result of the previous one."""
        result = None
        # A copy: a hook may remove itself.
        for hook in list(self.table.values()):
            made = hook(changed, *given)
            if made is not None:
                result = changed = made if isinstance(made, tuple) else (made,)
        return result


def register_on_node(tensor: torch.Tensor, moment: str, hook: Any) -> RemovableHandle:
    """Register a hook on the current and future nodes of a leaf, and return a handle."""
    keeper = find_keeper(tensor)
    if keeper is None:
        keeper = NodeKeeper(tensor)
        torch.Tensor.register_hook(tensor, keeper)  # type: ignore[no-untyped-call]
    table = keeper.tables[moment]
    handle = RemovableHandle(table)
    table[handle.id] = hook
    return handle


def leaf_hooks(
    tensor: torch.Tensor, moment: str, on_node: Mapping[int, Any] = MappingProxyType({})
) -> Iterator[tuple[int, Any]]:
    """Yield the hooks of one moment with their ids, in the order in which they run.

    Args:
        tensor: The leaf.
        moment: :data:`BEFORE` or :data:`AFTER` the gradient is accumulated.
        on_node: The hooks of the live node. Without them, only the keeper's hooks are found.
    """
    keeper = find_keeper(tensor)
    kept = {} if keeper is None else keeper.tables[moment]
    if not any(isinstance(hook, _Runner) for hook in on_node.values()):
        yield from list(kept.items())
    for identity, hook in list(on_node.items()):
        yield from list(hook.table.items()) if isinstance(hook, _Runner) else [(identity, hook)]


def node_tables(node: Any) -> dict[str, OrderedDict[int, Any]]:
    """Return the hooks of a node by their ids, for each moment.

    Only the handle of a hook gives access to a node's tables, so one is registered and removed.
    """
    tables = {}
    for moment, method in _REGISTERS.items():
        handle = getattr(node, method)(lambda *given: None)
        tables[moment] = handle.hooks_dict_ref()
        handle.remove()
    return tables


def find_live_nodes(leaves: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, Any]]:
    """Return the leaves whose node is alive, each with its node.

    Requesting a node creates one. Nodes are therefore marked and requested again: a new one has no
    mark. Both steps handle all leaves at once, 20 times as fast as ``get_gradient_edge``.
    """
    if RemovableHandle.next_id == 0:  # no hook was ever registered in this process
        return []
    mark = object()  # of this call, because another thread may search the same nodes
    with torch._C.DisableTorchFunctionSubclass():
        wanted = [tensor for tensor in leaves if tensor.requires_grad]
        for node in filter(None, _get_nodes(wanted)):
            node.metadata[mark] = True
        node = None
        pairs = zip(wanted, _get_nodes(wanted), strict=True)
        return [(t, node) for t, node in pairs if node and node.metadata.pop(mark, False)]


def iter_graph_nodes(tensor: torch.Tensor, seen: set[Any]) -> Iterator[Any]:
    """Yield the nodes of the graph that computed a tensor, without those seen before."""
    todo = [tensor.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            todo.extend(before for before, _ in node.next_functions)


class _AllOf(torch.autograd.Function):
    """A graph with a single node that leads to the nodes of all tensors."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        return torch.empty(0)


def _get_nodes(leaves: list[torch.Tensor]) -> list[Any]:
    """Return the node of each leaf, even if torch cannot create a view of it; None without one."""
    with torch.enable_grad(), torch.inference_mode(False):
        # strided nested tensors have no size, and custom functions do not accept them
        nested = [each.is_nested and each.layout is torch.strided for each in leaves]
        others = [each for each, alone in zip(leaves, nested, strict=True) if not alone]
        made: Any = _AllOf.apply(*others) if others else None  # type: ignore[no-untyped-call]
        behind = iter(() if made is None else made.grad_fn.next_functions)
        return [
            torch.ops.aten.alias(each).grad_fn.next_functions[0][0] if alone else next(behind)[0]
            for each, alone in zip(leaves, nested, strict=True)
        ]


def find_keeper(tensor: torch.Tensor) -> NodeKeeper | None:
    """Return the hook that stores hooks for a leaf's nodes, if modpack registered one."""
    with torch._C.DisableTorchFunctionSubclass():
        hooks = list((tensor._backward_hooks or {}).values())
    return next((hook for hook in hooks if isinstance(hook, NodeKeeper)), None)
