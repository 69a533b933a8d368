"""Hooks that no package can hold: on nodes of graphs, and those that only a handle leads to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils.hooks import RemovableHandle

from modpack.hooks.attachments import is_silent
from modpack.hooks.gradnodes import BEFORE, nodes_behind, tables_of
from modpack.hooks.groups import multi_grad_parts
from modpack.hooks.kinds import MULTI_GRAD, kinds_of

__all__ = ["HANDLE", "Unsaved", "behind_handle", "on_graphs"]

HANDLE: Final = "handle"


@dataclass(frozen=True)
class Unsaved:
    """A hook that cannot be saved.

    Attributes:
        target: the saved tensor whose graph has it, or the handle that leads to it.
        kind: the kind of hook; :data:`HANDLE` if only a handle is known.
        hook: what was registered.
        node: the name of the graph's node, if it hangs on one.
    """

    target: Any
    kind: str
    hook: Any
    node: str = ""


def on_graphs(
    tensors: Mapping[int, torch.Tensor], groups: set[int]
) -> Iterator[tuple[object, list[Unsaved]]]:
    """The tables of hooks that die with the graphs of tensors, each with what is in it.

    Args:
        tensors: the saved tensors by their ids. Leaves among them keep the hooks of their nodes.
        groups: the keys of the multi-grad hooks that were met, and then also of those found here.
    """
    seen: set[Any] = set()
    for tensor in tensors.values():
        if tensor.is_leaf:
            continue
        yield tensor._backward_hooks, list(_of_tensor(tensor, groups))
        for node in nodes_behind(tensor, seen) if RemovableHandle.next_id else ():
            if id(getattr(node, "variable", None)) in tensors:
                continue
            for moment, table in tables_of(node).items():
                kind = "graph.node_pre" if moment == BEFORE else "graph.node"
                hooks = [hook for hook in table.values() if not _is_trace(hook)]
                yield table, [Unsaved(tensor, kind, hook, node.name()) for hook in hooks]


def _of_tensor(tensor: torch.Tensor, groups: set[int]) -> Iterator[Unsaved]:
    for hook in list((tensor._backward_hooks or {}).values()):
        parts = multi_grad_parts(hook)
        if parts is None and not _is_trace(hook):
            yield Unsaved(tensor, "tensor", hook)
        elif parts is not None and parts.key not in groups and not _is_trace(parts.function):
            groups.add(parts.key)
            yield Unsaved(tensor, MULTI_GRAD, parts.function)


def behind_handle(handle: RemovableHandle, groups: set[int]) -> Iterator[Unsaved]:
    """The hook that a handle removes, if it is on nothing that is saved.

    Args:
        handle: a handle whose table belongs to nothing that was met.
        groups: as in :func:`on_graphs`.
    """
    table = handle.hooks_dict_ref()
    hook = (table or {}).get(handle.id)
    parts = multi_grad_parts(hook)
    if hook is None or (parts is not None and parts.key in groups):
        return
    function = hook if parts is None else parts.function
    groups.update([] if parts is None else [parts.key])
    of_process = [getattr(kind.home, kind.tables[0]) for kind in kinds_of("global")]
    if not _is_trace(function) and not any(table is each for each in of_process):
        yield Unsaved(handle, HANDLE, function)


def _is_trace(hook: object) -> bool:
    """Whether torch or modpack put a hook onto a graph, to carry out a hook of a module."""
    homes = {getattr(hook, "__module__", None), type(hook).__module__}
    own = {torch.utils.hooks.__name__, torch.nn.Module.__module__}
    return is_silent(hook) or not own.isdisjoint(homes)
