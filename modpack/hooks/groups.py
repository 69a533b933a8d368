"""Multi-grad hooks: one function behind hooks on several tensors, found again as one.

torch keeps no list of them; each tensor has an ordinary hook with a closure that knows the
group (:func:`torch.autograd.graph.register_multi_grad_hook`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Group", "Groups", "MultiGrad", "multi_grad_parts"]


@dataclass(frozen=True)
class MultiGrad:
    """What is behind one tensor's part of a multi-grad hook.

    Attributes:
        key: the same for all tensors of a group.
        function: what the user registered.
        mode: ``all`` or ``any``.
        nodes: for ``all``, the graph's nodes of all tensors, in the order in which the function
            gets their gradients.
    """

    key: int
    function: Any
    mode: str
    nodes: Sequence[Any] = ()


def multi_grad_parts(hook: Any) -> MultiGrad | None:
    """Read the group back from the closure that torch hangs on each of its tensors."""
    code, closure = getattr(hook, "__code__", None), getattr(hook, "__closure__", None)
    if code is None or not closure or code.co_filename != torch.autograd.graph.__file__:
        return None
    cells = dict(zip(code.co_freevars, closure, strict=True))
    if code.co_name == "inner_hook" and {"fn", "buffer", "grad_fns"} <= set(cells):
        buffer, nodes = cells["buffer"].cell_contents, cells["grad_fns"].cell_contents
        return MultiGrad(id(buffer), cells["fn"].cell_contents, "all", nodes)
    if code.co_name == "wrapped_fn" and {"fn", "ran_hook"} <= set(cells):
        return MultiGrad(id(cells["ran_hook"].cell_contents), cells["fn"].cell_contents, "any")
    return None


@dataclass
class Group:
    """A multi-grad hook and its tensors.

    Attributes:
        hook: what was registered.
        members: its tensors, in the order in which they were given.
        on_graph: whether some of its tensors are intermediate ones, which die with their graph.
    """

    hook: MultiGrad
    members: list[torch.Tensor] = field(default_factory=list)
    on_graph: bool = False
    _known: set[int] = field(default_factory=set)

    def is_new(self, member: torch.Tensor) -> bool:
        """Whether a tensor was not asked for before."""
        known = id(member) in self._known
        self._known.add(id(member))
        return not known

    def settle(self) -> None:
        """Bring the members into the order in which they were given, whichever was met first."""
        if self.hook.mode == "any":
            places = dict(zip(map(id, self.members), self.identities, strict=True))
            self.members.sort(key=lambda member: places[id(member)])

    @property
    def identities(self) -> tuple[int, ...]:
        """The id of the hook on each member."""
        used: set[int] = set()
        return tuple(_identity(member, self.hook.key, used) for member in self.members)


class Groups:
    """The groups that were met, each one once, whichever of its tensors came first."""

    def __init__(self) -> None:
        self._groups: dict[int, Group] = {}

    @property
    def keys(self) -> Collection[int]:
        """The keys of all that were met."""
        return self._groups.keys()

    def note(self, tensor: torch.Tensor) -> Iterator[Group]:
        """Note a tensor's groups; gives those that are new."""
        for hook in list((tensor._backward_hooks or {}).values()):
            parts = multi_grad_parts(hook)
            if parts is None:
                continue
            group = self._groups.get(parts.key)
            if group is None:
                group = self._groups[parts.key] = _begun(parts)
                yield group
            if parts.mode == "any" and group.is_new(tensor):
                group.members.append(tensor)


def _begun(parts: MultiGrad) -> Group:
    variables = [getattr(node, "variable", None) for node in parts.nodes]
    members = [each for each in variables if each is not None]
    return Group(parts, members, len(members) < len(variables))


def _identity(member: torch.Tensor, key: int, used: set[int]) -> int:
    """The id of a group's hook on a tensor; a tensor that was given twice has two."""
    for identity, hook in list((member._backward_hooks or {}).items()):
        parts = multi_grad_parts(hook)
        if parts is not None and parts.key == key and identity not in used:
            used.add(identity)
            return int(identity)
    return -1
