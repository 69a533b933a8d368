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

from modpack.core.hookspec import PARAMETRIZATION, HookSpec
from modpack.hooks.attachments import attachment_specs, is_silent
from modpack.hooks.ddp import belongs_to_wrapper
from modpack.hooks.describe import describe
from modpack.hooks.gradnodes import hooks_of_leaf, keeper_of, living_nodes, tables_of
from modpack.hooks.graphparts import Part
from modpack.hooks.groups import Group, Groups
from modpack.hooks.kinds import KINDS, MULTI_GRAD, Found, Kind, kinds_of
from modpack.hooks.naming import Names
from modpack.hooks.native import travels_natively
from modpack.hooks.numbering import HookNumbers, LiveIds
from modpack.hooks.parametrized import parametrizations_of
from modpack.hooks.state import describe_hook
from modpack.hooks.unsaved import Unsaved, behind_handle, on_graphs

__all__ = ["Collected", "HookCollector"]


@dataclass(frozen=True)
class Collected:
    """One hook on its way into the package.

    Attributes:
        kind: the row of the table of kinds.
        target: the module, tensor or optimizer; a list of tensors for a group; None for
            process-wide hooks.
        found: the hook, its id and its flags.
        position: its place among the hooks of its kind on its target.
        rank: its place in the table that torch keeps it in, which kinds may share.
        group: the group of tensors, if it hangs on one.
    """

    kind: str
    target: Any
    found: Found
    position: int
    rank: int = 0
    group: Group | None = None

    @property
    def identities(self) -> tuple[int, ...]:
        """Its id on the target, or on each member of a group."""
        return (self.found.identity,) if self.group is None else self.group.identities


@dataclass
class HookCollector:
    """Notes the hooks of everything that one pickler meets.

    Attributes:
        wanted: tells from a spec whether the user wants the hook in the package.
        native: target, kind and hook of what travels with its module.
        references_stay: whether functions that can be imported stay in the modules' state, for
            readers that know nothing of specs.
        numbers: what stands in a package for the ids that torch gave.
        left_out: the specs that were not wanted.
        on_graphs: groups with tensors that die with their graph.
    """

    is_importable: Callable[[FunctionType], bool]
    wanted: Callable[[HookSpec], bool] = lambda spec: True
    native: list[tuple[Any, str, Any]] = field(default_factory=list)
    left_out: list[HookSpec] = field(default_factory=list)
    on_graphs: list[Group] = field(default_factory=list)
    references_stay: bool = True
    numbers: HookNumbers = field(default_factory=LiveIds)
    _told: int = 0
    _orders: list[tuple[Any, str, list[int]]] = field(default_factory=list)
    _parametrized: list[torch.nn.Module] = field(default_factory=list)
    _hooks: list[Collected] = field(default_factory=list)
    _groups: Groups = field(default_factory=Groups)
    _grouped: int = 0
    _handles: list[RemovableHandle] = field(default_factory=list)
    _tables: dict[int, tuple[Any, str]] = field(default_factory=dict)
    _untold: list[tuple[Any, str]] = field(default_factory=list)
    _seen: dict[int, Any] = field(default_factory=dict)
    _differentiable: dict[int, torch.Tensor] = field(default_factory=dict)
    _unasked: list[torch.Tensor] = field(default_factory=list)
    _asked: list[Any] = field(default_factory=list)

    def module(self, module: torch.nn.Module) -> None:
        """Note a module's hooks."""
        self._note(module, "module")

    def state_without_hooks(self, state: Any) -> Any:
        """A module's state without the hooks that are registered again after loading."""
        if not isinstance(state, dict):
            return state
        replaced: dict[str, dict[int, Any]] = {}
        for kind in kinds_of("module"):
            table, *flags = kind.tables
            if isinstance(state.get(table), dict) and state[table]:
                kept = self._kept(state[table])
                replaced[table] = self.numbers.table(kept)
                for name in flags:
                    here = state.get(name) or {}
                    replaced[name] = self.numbers.table({i: here[i] for i in kept if i in here})
        return {**state, **replaced} if replaced else state

    def parametrized(self, module: torch.nn.Module) -> None:
        """Note the parametrizations of a module. They travel with it, and are only described."""
        self._parametrized.append(module)

    def tensor(self, tensor: torch.Tensor) -> None:
        """Note the hooks of a leaf tensor."""
        self.differentiable(tensor)
        if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
            self._note(tensor, "tensor")
            for group in self._groups.note(tensor):
                if not is_silent(group.hook.function):
                    self._note_group(group)

    def differentiable(self, tensor: torch.Tensor) -> None:
        """Note a tensor whose gradient may pass nodes with hooks: looked at with many others."""
        if id(tensor) not in self._differentiable:
            self._differentiable[id(tensor)] = tensor
            self._unasked.append(tensor)

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Note an optimizer's hooks."""
        self._note(optimizer, "optimizer")

    def handle(self, handle: RemovableHandle) -> None:
        """Note a handle that the pickled objects hold on to."""
        self._handles.append(handle)

    def note(self, kind: str, target: Any, hook: Any, position: int) -> None:
        """Note a hook that hangs in no table of its target."""
        self._hooks.append(Collected(kind, target, Found(-1, hook, {}), position))

    def process_wide(self) -> None:
        """Note the hooks of the whole process, which belong to no object."""
        for kind in kinds_of("global"):
            self._note_tables(None, kind)
            self._hooks.extend(
                Collected(kind.name, None, found, position)
                for position, found in enumerate(kind.find(kind.home))
            )

    def missed(self, root: Any, names: Callable[[], Names]) -> list[HookSpec]:
        """The wanted hooks on parts of a module that the pickler never met.

        A class that rebuilds its parts in a ``__reduce__`` or ``__setstate__`` of its own keeps
        them from the pickle.
        """
        if not isinstance(root, torch.nn.Module):
            return []
        unseen = HookCollector(self.is_importable)
        for part in root.modules():
            if id(part) not in self._seen:
                unseen.module(part)
        for tensor in (*root.parameters(), *root.buffers()):
            if id(tensor) not in self._seen and id(tensor) not in self._differentiable:
                unseen.tensor(tensor)
        if not unseen.has_news:
            return []
        specs, _ = unseen.take(names())
        return [spec for spec in specs if self.wanted(spec)]

    def unsaved(self) -> Iterator[Unsaved]:
        """What is lost: hooks on graphs, and those behind handles of nothing that is saved."""
        groups = set(self._groups.keys)
        for group in self.on_graphs:
            yield Unsaved(group.members, MULTI_GRAD, group.hook.function)
        tables: list[object] = []
        with torch._C.DisableTorchFunctionSubclass():  # a class may refuse to be asked
            found = list(on_graphs(self._differentiable, groups))
        for table, hooks in found:
            tables.append(table)
            yield from hooks
        for handle in self._handles:
            table = handle.hooks_dict_ref()
            if self._owner(handle) is None and not any(table is each for each in tables):
                yield from behind_handle(handle, groups)

    @property
    def has_news(self) -> bool:
        """Whether anything was noted since the last call of :meth:`take`."""
        self._ask_nodes()
        news = self._hooks or self._parametrized or len(self.native) > self._told
        return bool(news) or any(self._owner(handle) is not None for handle in self._handles)

    def take(self, names: Names) -> tuple[list[HookSpec], dict[str, Any]]:
        """The hooks noted since the last call: their specs, and what to pickle for them.

        Args:
            names: the paths that lead to targets.

        Returns:
            The specs, and a payload with the hooks in the order in which to register them.
        """
        self._ask_nodes()
        for each in self._hooks:
            if each.group is not None:
                each.group.settle()
        collected = sorted(self._hooks, key=_registration_order)
        self._hooks = []
        self._told = len(self.native)
        orders, self._orders = self._orders, []
        attached = attachment_specs(collected, names, self.is_importable)
        specs = [attached.get(id(c.found.hook)) or self._spec(c, names) for c in collected]
        once = {spec.name: spec for spec in specs}.values()  # several hooks may share one
        wanted = [spec for spec in once if self.wanted(spec)]
        taken = {spec.name for spec in wanted}
        self.left_out.extend(spec for spec in once if spec.name not in taken)
        hooks = [
            (spec.name, c.kind, _settled(c), dict(c.found.flags), self._ids(c), c.found.hook)
            for spec, c in zip(specs, collected, strict=True)
            if spec.name in taken
        ]
        payload = {
            "hooks": hooks,
            "dropped": [(c.kind, c.target) for c in collected if _is_in_a_table(c)],
            "next_id": self.numbers.following,
            "orders": orders,
            "handles": list(self._linked_handles()),
        }
        return [*wanted, *self._parametrizations(names)], payload

    def _note(self, target: Any, scope: str) -> None:
        if id(target) in self._seen:
            return
        self._seen[id(target)] = target
        noted: list[Collected] = []
        self._untold.append((target, scope))
        for kind in kinds_of(scope):
            table = getattr(target, kind.tables[0], None)
            if not table:  # as of nearly all: that is where its hooks would be
                continue
            ranks = {i: rank for rank, i in enumerate(table)}
            position = 0
            for found in kind.find(target):
                if travels_natively(found.hook):
                    self.native.append((target, kind.name, found.hook))
                    if len(ranks) > 1:  # the others are registered again, among those that stay
                        order = self.numbers.of_all(ranks)
                        self._orders.append((target, kind.tables[0], order))
                    continue
                if is_silent(found.hook) or belongs_to_wrapper(found.hook):
                    continue
                rank = ranks[found.identity]
                noted.append(Collected(kind.name, target, found, position, rank))
                position += not isinstance(found.hook, Part)  # those have names of their own
        self._hooks.extend(sorted(noted, key=lambda c: (KINDS[c.kind].tables[0], c.rank)))

    def _ask_nodes(self) -> None:
        """Note the hooks of the nodes that accumulate the gradients of leaves."""
        tensors, self._unasked = self._unasked, []
        with torch._C.DisableTorchFunctionSubclass():  # their classes need not know these questions
            leaves = [tensor for tensor in tensors if tensor.is_leaf]
            nodes = {id(tensor): node for tensor, node in living_nodes(leaves)}
            for tensor in leaves:
                if id(tensor) in nodes or tensor._backward_hooks:
                    self._note_node(tensor, nodes.get(id(tensor)))

    def _note_node(self, tensor: torch.Tensor, node: Any) -> None:
        on_node = {} if node is None else tables_of(node)
        keeper = keeper_of(tensor)
        for tables in (on_node, {} if keeper is None else keeper.tables):
            self._tables.update({id(table): (tensor, name) for name, table in tables.items()})
        self._asked.append(on_node)  # else another table may get its id
        for kind in kinds_of("accumulator"):
            position = 0
            for identity, hook in hooks_of_leaf(tensor, kind.name, on_node.get(kind.name, {})):
                if not is_silent(hook) and not belongs_to_wrapper(hook):
                    found = Found(identity, hook, {})
                    self._hooks.append(Collected(kind.name, tensor, found, position))
                    position += 1

    def _note_tables(self, target: Any, kind: Kind) -> None:
        for table in kind.tables:
            holder = getattr(kind.home or target, table, None)
            if holder is not None:
                self._tables[id(holder)] = (target, table)

    def _note_group(self, group: Group) -> None:
        if group.on_graph:
            self.on_graphs.append(group)
            return
        found = Found(-1, group.hook.function, {"mode": group.hook.mode})
        noted = Collected(MULTI_GRAD, group.members, found, self._grouped, 0, group)
        self._grouped += 1
        self._hooks.append(noted)

    def _kept(self, table: dict[int, Any]) -> OrderedDict[int, Any]:
        """What stays in the state: torch's own, and functions that torch.package reloads too."""

        def stays(hook: Any) -> bool:
            if isinstance(hook, FunctionType) and self.references_stay:
                return self.is_importable(hook)
            return travels_natively(hook)

        return OrderedDict((i, hook) for i, hook in list(table.items()) if stays(hook))

    def _spec(self, collected: Collected, names: Names) -> HookSpec:
        target, aliases = names.of(collected.target)
        return HookSpec(
            name=names.hook_name(target, collected.kind, collected.position),
            kind=collected.kind,
            target=target,
            position=collected.position,
            callable=describe_hook(collected.found.hook, self.is_importable),
            aliases=aliases,
            flags=dict(collected.found.flags),
        )

    def _parametrizations(self, names: Names) -> Iterator[HookSpec]:
        modules, self._parametrized = self._parametrized, []
        for module in modules:
            (path,), _ = names.of(module)
            for tensor, position, part in parametrizations_of(module):
                target = (f"{path}.{tensor}" if path else tensor,)
                name = names.hook_name(target, PARAMETRIZATION, position)
                called = describe(part, False)
                yield HookSpec(name, PARAMETRIZATION, target, position, called)

    def _ids(self, collected: Collected) -> tuple[Any, ...]:
        return tuple(self.numbers.of_all(collected.identities))

    def _owner(self, handle: RemovableHandle) -> tuple[Any, str] | None:
        untold, self._untold = self._untold, []
        for target, scope in untold:  # only handles ask for tables, and few models have any
            for kind in kinds_of(scope):
                self._note_tables(target, kind)
        table = handle.hooks_dict_ref()
        return self._tables.get(id(table)) if table is not None else None

    def _linked_handles(self) -> Iterator[tuple[Any, ...]]:
        """Handles whose tables are known by now, with what tells which hooks they remove."""
        handles, self._handles = self._handles, []
        for handle in handles:
            owner = self._owner(handle)
            if owner is None:
                self._handles.append(handle)
            else:
                extras = [self._tables.get(id(ref())) for ref in handle.extra_dict_ref]
                number = self.numbers.of(handle.id)
                yield handle, *owner, number, [extra[1] for extra in extras if extra]


def _settled(collected: Collected) -> Any:
    """The target as it is now: a group whose tensors turn up later is not changed any more."""
    return collected.target if collected.group is None else list(collected.target)


def _registration_order(collected: Collected) -> tuple[int, int]:
    """Tensor hooks in the order of their ids, across tensors; the others as they were noted."""
    is_tensor = KINDS[collected.kind].scope in ("tensor", "group")
    return (1, min(collected.identities)) if is_tensor else (0, 0)


def _is_in_a_table(collected: Collected) -> bool:
    """Whether it may have travelled in its target's state, and has to be taken off there."""
    return KINDS[collected.kind].scope in ("module", "optimizer")
