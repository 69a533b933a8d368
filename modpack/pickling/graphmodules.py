"""GraphModules of a class of their own, or with more Graphs than the one that they run.

torch saves the code of a GraphModule and traces that again when it is loaded. That makes a plain
GraphModule of what was of a derived class. A Graph in one of its attributes leads back to the
module, which does not exist yet at that time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch.fx import Graph, GraphModule

from modpack.pickling.remade import graph_module

__all__ = ["GraphModules", "is_held_by_owner"]

_IMPLEMENTATION = "GraphModuleImpl"
"""The class that torch makes for each GraphModule, so that each can have a forward of its own."""


class GraphModules:
    """Reduces those GraphModules of one pickle of which torch would lose something."""

    def __init__(self) -> None:
        self._plain: dict[int, tuple[Graph, GraphModule]] = {}

    def reduction(self, module: object) -> tuple[Any, ...] | None:
        """A function of :mod:`.remade` with its arguments; None for what torch does well.

        Args:
            module: anything that packages itself.
        """
        if not isinstance(module, GraphModule) or not _leaves_that_to_torch(type(module)):
            return None
        kind, held = _class_of(module), vars(module)
        graphs = {name: value for name, value in held.items() if isinstance(value, Graph)}
        if kind is GraphModule and len(graphs) == 1:
            return None
        state = {name: value for name, value in held.items() if name not in graphs}
        plain = {name: self._plain_module(module, graph) for name, graph in graphs.items()}
        return graph_module, (kind, type(module).__name__, plain, state)

    def _plain_module(self, module: GraphModule, graph: Graph) -> GraphModule:
        """A module that torch saves in place of a Graph; it holds the same modules and tensors."""
        if id(graph) not in self._plain:
            # A copy of the Graph: the live one must not get another owner.
            self._plain[id(graph)] = (graph, GraphModule(module, copy.deepcopy(graph)))
        return self._plain[id(graph)][1]


def is_held_by_owner(graph: Graph) -> bool:
    """Whether a Graph is in an attribute of the module that owns it, or in a container there."""
    owner = graph.owning_module
    return owner is not None and _holds(list(vars(owner).values()), graph)


def _holds(value: object, graph: Graph) -> bool:
    if isinstance(value, dict):
        return _holds(list(value.values()), graph)
    if isinstance(value, (list, tuple)):
        return any(part is graph or _holds(part, graph) for part in value)
    return False


def _class_of(module: GraphModule) -> type:
    return next(kind for kind in type(module).__mro__ if _name_of(kind) != _IMPLEMENTATION)


def _name_of(kind: type) -> str:
    return kind.__qualname__.rpartition(".")[2]


def _leaves_that_to_torch(kind: type) -> bool:
    own: Callable[..., Any] = kind.__reduce_package__  # type: ignore[attr-defined]
    return own is GraphModule.__reduce_package__
