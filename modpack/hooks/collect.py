"""Collecting hooks while an object is pickled: no module, tensor or optimizer is missed.

Whatever the pickler meets goes past the collector: it notes what hangs there, and keeps from
the pickled state what will be registered again after loading. The live objects are only read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from modpack.core.hookspec import HookSpec
from modpack.hooks.describe import describe
from modpack.hooks.kinds import KINDS, Found, Kind, kinds_of, multi_grad_parts
from modpack.hooks.naming import Names
from modpack.hooks.native import travels_natively

__all__ = ["Collected", "HookCollector"]


@dataclass(frozen=True)
class Collected:
    """One hook on its way into the package.

    Attributes:
        kind: the row of the table of kinds.
        target: the module, tensor or optimizer; a tuple of tensors for a group; None for
            process-wide hooks.
        found: the hook, its id and its flags.
        position: its place among the hooks of its kind on its target.
        rank: its place in the table that torch keeps it in, which kinds may share.
    """

    kind: str
    target: Any
    found: Found
    position: int
    rank: int = 0


@dataclass
class HookCollector:
    """Notes the hooks of everything that one pickler meets.

    Attributes:
        wanted: tells from a spec whether the user wants the hook in the package.
        native: target, kind and hook of what travels with its module.
        left_out: the specs that were not wanted.
    """

    is_importable: Callable[[FunctionType], bool]
    wanted: Callable[[HookSpec], bool] = lambda spec: True
    native: list[tuple[Any, str, Any]] = field(default_factory=list)
    left_out: list[HookSpec] = field(default_factory=list)
    _told: int = 0
    _hooks: list[Collected] = field(default_factory=list)
    _groups: dict[int, Collected] = field(default_factory=dict)
    _handles: list[RemovableHandle] = field(default_factory=list)
    _tables: dict[int, tuple[Any, str]] = field(default_factory=dict)
    _seen: dict[int, Any] = field(default_factory=dict)

    def module(self, module: torch.nn.Module) -> None:
        """Note a module's hooks."""
        self._note(module, "module")

    def state_without_hooks(self, state: Any) -> Any:
        """A module's state without the hooks that are registered again after loading."""
        if not isinstance(state, dict):
            return state
        replaced = {
            table: self._kept(state[table])
            for kind in kinds_of("module")
            for table in kind.tables[:1]
            if isinstance(state.get(table), dict) and state[table]
        }
        return {**state, **replaced} if replaced else state

    def tensor(self, tensor: torch.Tensor) -> None:
        """Note a tensor's hooks."""
        if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
            self._note(tensor, "tensor")
            for found in _all_tensor_hooks(tensor):
                self._note_group(tensor, found)

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Note an optimizer's hooks."""
        self._note(optimizer, "optimizer")

    def handle(self, handle: RemovableHandle) -> None:
        """Note a handle that the pickled objects hold on to."""
        self._handles.append(handle)

    def process_wide(self) -> None:
        """Note the hooks of the whole process, which belong to no object."""
        for kind in kinds_of("global"):
            self._hooks.extend(
                Collected(kind.name, None, found, position)
                for position, found in enumerate(kind.find(None))
            )

    @property
    def has_news(self) -> bool:
        """Whether anything was noted since the last call of :meth:`take`."""
        return bool(self._hooks or self._handles or len(self.native) > self._told)

    def take(self, names: Names) -> tuple[list[HookSpec], dict[str, Any]]:
        """The hooks noted since the last call: their specs, and what to pickle for them.

        Args:
            names: the paths that lead to targets.

        Returns:
            The specs, and a payload with the hooks in the order in which to register them.
        """
        collected = sorted(self._hooks, key=_registration_order)
        self._hooks = []
        handles, self._handles = self._handles, []
        self._told = len(self.native)
        specs = [self._spec(each, names) for each in collected]
        entries = [
            (spec.name, each.kind, each.target, dict(each.found.flags), each.found)
            for spec, each in zip(specs, collected, strict=True)
            if self.wanted(spec)
        ]
        payload = {
            "hooks": [(n, k, t, f, found.identity, found.hook) for n, k, t, f, found in entries],
            "dropped": [(c.kind, c.target) for c in collected if c.target is not None],
            "next_id": RemovableHandle.next_id,
            "handles": [entry for each in handles for entry in self._linked(each)],
        }
        self.left_out.extend(spec for spec in specs if not self.wanted(spec))
        return [spec for spec in specs if self.wanted(spec)], payload

    def _note(self, target: Any, scope: str) -> None:
        if id(target) in self._seen:
            return
        self._seen[id(target)] = target
        noted: list[Collected] = []
        for kind in kinds_of(scope):
            self._note_tables(target, kind)
            ranks = {i: rank for rank, i in enumerate(getattr(target, kind.tables[0], None) or ())}
            position = 0
            for found in kind.find(target):
                if travels_natively(found.hook):
                    self.native.append((target, kind.name, found.hook))
                    continue
                rank = ranks[found.identity]
                noted.append(Collected(kind.name, target, found, position, rank))
                position += 1
        self._hooks.extend(sorted(noted, key=lambda c: (KINDS[c.kind].tables[0], c.rank)))

    def _note_tables(self, target: Any, kind: Kind) -> None:
        for table in kind.tables:
            holder = getattr(target, table, None)
            if holder is not None:
                self._tables[id(holder)] = (target, table)

    def _note_group(self, tensor: torch.Tensor, found: Found) -> None:
        parts = multi_grad_parts(found.hook)
        if parts is None:
            return
        known = self._groups.get(parts.key)
        if known is None:
            group = Found(found.identity, parts.function, {"mode": parts.mode})
            known = Collected("multi_grad", [tensor], group, len(self._groups))
            self._groups[parts.key] = known
            self._hooks.append(known)
        elif not any(member is tensor for member in known.target):
            known.target.append(tensor)

    def _kept(self, table: dict[int, Any]) -> OrderedDict[int, Any]:
        """What stays in the state: torch's own, and functions that torch.package reloads too."""
        return OrderedDict(
            (identity, hook)
            for identity, hook in table.items()
            if travels_natively(hook)
            or (isinstance(hook, FunctionType) and self.is_importable(hook))
        )

    def _spec(self, collected: Collected, names: Names) -> HookSpec:
        hook = collected.found.hook
        importable = isinstance(hook, FunctionType) and self.is_importable(hook)
        target, aliases = names.of(collected.target)
        return HookSpec(
            name=names.hook_name(target, collected.kind, collected.position),
            kind=collected.kind,
            target=target,
            position=collected.position,
            callable=describe(hook, importable),
            aliases=aliases,
            flags=dict(collected.found.flags),
        )

    def _linked(self, handle: RemovableHandle) -> Iterator[tuple[Any, ...]]:
        table = handle.hooks_dict_ref()
        owner = self._tables.get(id(table)) if table is not None else None
        if owner is not None:
            extras = [self._tables.get(id(ref())) for ref in handle.extra_dict_ref]
            yield handle, *owner, handle.id, [extra[1] for extra in extras if extra is not None]


def _registration_order(collected: Collected) -> tuple[int, int]:
    """Tensor hooks in the order of their ids, across tensors; the others as they were noted."""
    is_tensor = KINDS[collected.kind].scope in ("tensor", "group")
    return (1, collected.found.identity) if is_tensor else (0, 0)


def _all_tensor_hooks(tensor: torch.Tensor) -> Iterator[Found]:
    for identity, hook in list((tensor._backward_hooks or {}).items()):
        yield Found(identity, hook, {})
