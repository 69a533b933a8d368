"""Collecting hooks while an object is pickled: no module, tensor or optimizer is missed.

Whatever the pickler meets goes past the collector: it notes what hangs there, and keeps from
the pickled state what will be registered again after loading. The live objects are only read.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final

import torch
from torch.utils.hooks import RemovableHandle

from modpack.core.hookspec import PARAMETRIZATION, HookSpec
from modpack.errors import ModpackError
from modpack.hooks.ddp import belongs_to_wrapper
from modpack.hooks.describe import ObjectPaths, describe, describe_hook
from modpack.hooks.graph_nodes import (
    BEFORE,
    hooks_of_leaf,
    keeper_of,
    living_nodes,
    nodes_behind,
    tables_of,
)
from modpack.hooks.graph_parts import GraphPart, OnGraph
from modpack.hooks.kinds import (
    KINDS,
    MULTI_GRAD,
    HookKind,
    InstalledHook,
    MultiGradPart,
    kinds_of,
    multi_grad_part,
    travels_natively,
)
from modpack.hooks.parametrized import parametrizations_of

FIRST = 1_000_000
"""The first number. In a process that reads the package with torch.package, torch counts from 0:
the next hook to be registered would overwrite one that has a small number."""


class HookIdMap:
    """The numbers by which a package tells hooks apart, in place of the ids that torch gave them.

    Torch counts all hooks of a process: an id tells how many were registered before, by anybody.
    In a package the hooks are counted as they are met.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    @property
    def following(self) -> int:
        """The next number; all that were given are below."""
        return FIRST + len(self._numbers)

    def of(self, identity: Any) -> Any:
        """The number of a hook by its id; what is no id stays as it is."""
        if type(identity) is not int or identity < 0:
            return identity
        return self._numbers.setdefault(identity, self.following)

    def of_all(self, identities: Iterable[Any]) -> list[Any]:
        """The numbers of several hooks."""
        return [self.of(identity) for identity in identities]

    def table(self, table: Mapping[Any, Any]) -> OrderedDict[Any, Any]:
        """A table of hooks, or of flags of hooks, by their numbers."""
        return OrderedDict((self.of(identity), value) for identity, value in table.items())


class LiveIds(HookIdMap):
    """The ids themselves, where hooks stay in their process."""

    @property
    def following(self) -> int:
        """Zero: hooks that are restored without a package get fresh ids, and none keeps its own."""
        return 0

    def of(self, identity: Any) -> Any:
        """The id."""
        return identity


HANDLE: Final = "handle"


@dataclass(frozen=True)
class UnsavedHook:
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


def is_silent(hook: object) -> bool:
    """Whether a hook is only a trace of an attachment: on an old graph, or removed."""
    return isinstance(hook, OnGraph) or (isinstance(hook, GraphPart) and hook.attachment.removed)


def _is_trace(hook: object) -> bool:
    """Whether torch or modpack put a hook onto a graph, to carry out a hook of a module."""
    homes = {getattr(hook, "__module__", None), type(hook).__module__}
    own = {torch.utils.hooks.__name__, torch.nn.Module.__module__}
    return is_silent(hook) or not own.isdisjoint(homes)


@dataclass
class HookGroup:
    """A multi-grad hook and its tensors.

    Attributes:
        hook: what was registered.
        members: its tensors, in the order in which they were given.
        on_graph: whether some of its tensors are intermediate ones, which die with their graph.
    """

    hook: MultiGradPart
    members: list[torch.Tensor] = field(init=False)
    on_graph: bool = field(init=False)

    def __post_init__(self) -> None:
        variables = [getattr(node, "variable", None) for node in self.hook.nodes]
        self.members = [each for each in variables if each is not None]
        self.on_graph = len(self.members) < len(variables)

    def settle(self) -> None:
        """Bring the members into the order in which they were given, whichever was met first."""
        if self.hook.mode == "any":
            places = dict(zip(map(id, self.members), self.identities, strict=True))
            self.members.sort(key=lambda member: places[id(member)])

    @property
    def identities(self) -> tuple[int, ...]:
        """The id of the hook on each member, or -1; a tensor that was given twice has two."""
        used: set[int] = set()
        found = []
        for member in self.members:
            ids = (i for i, part in _multi_grad_parts(member) if part.key == self.hook.key)
            found.append(next((i for i in ids if i not in used), -1))
            used.add(found[-1])
        return tuple(found)


def _multi_grad_parts(tensor: torch.Tensor) -> Iterator[tuple[int, MultiGradPart]]:
    """A tensor's parts of multi-grad hooks, with their ids."""
    for identity, hook in list((tensor._backward_hooks or {}).items()):
        part = multi_grad_part(hook)
        if part is not None:
            yield identity, part


@dataclass(frozen=True)
class CapturedHook:
    """One hook on its way into the package.

    Attributes:
        kind: the row of the table of kinds; of an attachment, that of its spec.
        target: the module, tensor or optimizer; a list of tensors for a group; None for
            process-wide hooks.
        found: the hook, its id and its flags.
        position: its place among the hooks of its kind on its target.
        rank: its place in the table that torch keeps it in, which kinds may share.
        group: the group of tensors, if it hangs on one.
    """

    kind: str
    target: Any
    found: InstalledHook
    position: int
    rank: int = 0
    group: HookGroup | None = None

    @property
    def identities(self) -> tuple[int, ...]:
        """Its id on the target, or on each member of a group."""
        return (self.found.identity,) if self.group is None else self.group.identities

    @property
    def registration_order(self) -> tuple[int, int]:
        """Tensor hooks in the order of their ids, across tensors; the others as they were noted."""
        is_tensor = KINDS[self.kind].scope in ("tensor", "group")
        return (1, min(self.identities)) if is_tensor else (0, 0)


@dataclass
class HookCollector:
    """Notes the hooks of everything that one pickler meets.

    Attributes:
        is_importable: tells which functions can be imported.
        wanted: tells from a spec whether the user wants the hook in the package.
        native: target, kind and hook of what travels with its module.
        references_stay: whether functions that can be imported stay in the modules' state, for
            readers that know nothing of specs.
        numbers: what stands in a package for the ids that torch gave.
        left_out: the specs that were not wanted.
        parametrized: modules with parametrizations, which travel with them and are only described.
        handles: handles that the pickled objects hold on to, not yet linked to their hooks.
    """

    is_importable: Callable[[FunctionType], bool]
    wanted: Callable[[HookSpec], bool] = lambda spec: True
    native: list[tuple[Any, str, Any]] = field(default_factory=list)
    left_out: list[HookSpec] = field(default_factory=list)
    references_stay: bool = True
    numbers: HookIdMap = field(default_factory=LiveIds)
    parametrized: list[torch.nn.Module] = field(default_factory=list)
    handles: list[RemovableHandle] = field(default_factory=list)
    _hooks: list[CapturedHook] = field(default_factory=list)
    _orders: list[tuple[Any, str, list[int]]] = field(default_factory=list)
    _native_taken: int = 0
    _seen: dict[int, Any] = field(default_factory=dict)
    _groups: dict[int, HookGroup] = field(default_factory=dict)
    _grouped: int = 0
    _tables: dict[int, tuple[Any, str]] = field(default_factory=dict)
    _without_tables: list[tuple[Any, str]] = field(default_factory=list)
    _differentiable: dict[int, torch.Tensor] = field(default_factory=dict)
    _unasked: list[torch.Tensor] = field(default_factory=list)
    _asked: list[Any] = field(default_factory=list)

    def note_hooks(self, target: Any, scope: str) -> None:
        """Note the hooks in the tables of a module, tensor or optimizer."""
        if id(target) in self._seen:
            return
        self._seen[id(target)] = target
        self._without_tables.append((target, scope))
        noted: list[CapturedHook] = []
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
                noted.append(CapturedHook(kind.name, target, found, position, rank))
                position += not isinstance(found.hook, GraphPart)  # those have names of their own
        self._hooks.extend(sorted(noted, key=lambda c: (KINDS[c.kind].tables[0], c.rank)))

    def note_hook(self, kind: str, target: Any, hook: Any, position: int) -> None:
        """Note a hook that hangs in no table of its target."""
        self._hooks.append(CapturedHook(kind, target, InstalledHook(-1, hook, {}), position))

    def tensor(self, tensor: torch.Tensor) -> None:
        """Note the hooks of a leaf tensor."""
        self.differentiable(tensor)
        if id(tensor) in self._seen or not (
            tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None)
        ):
            return
        self.note_hooks(tensor, "tensor")
        for key, part in {part.key: part for _, part in _multi_grad_parts(tensor)}.items():
            if key not in self._groups:
                group = self._groups[key] = HookGroup(part)
                if not (group.on_graph or is_silent(part.function)):
                    found = InstalledHook(-1, part.function, {"mode": part.mode})
                    position, self._grouped = self._grouped, self._grouped + 1
                    self._hooks.append(
                        CapturedHook(MULTI_GRAD, group.members, found, position, group=group)
                    )
            if part.mode == "any":
                self._groups[key].members.append(tensor)

    def differentiable(self, tensor: torch.Tensor) -> None:
        """Note a tensor whose gradient may pass nodes with hooks: looked at with many others."""
        if id(tensor) not in self._differentiable:
            self._differentiable[id(tensor)] = tensor
            self._unasked.append(tensor)

    def process_wide(self) -> None:
        """Note the hooks of the whole process, which belong to no object."""
        for kind in kinds_of("global"):
            self._note_tables(None, kind)
            self._hooks.extend(
                CapturedHook(kind.name, None, found, position)
                for position, found in enumerate(kind.find(kind.home))
            )

    def state_without_hooks(self, state: Any) -> Any:
        """A module's state without the hooks that are registered again after loading."""
        if not isinstance(state, dict):
            return state
        replaced: dict[str, dict[int, Any]] = {}
        for kind in kinds_of("module"):
            table, *flags = kind.tables
            if isinstance(state.get(table), dict) and state[table]:
                kept = {i: hook for i, hook in list(state[table].items()) if self._stays(hook)}
                replaced[table] = self.numbers.table(kept)
                for name in flags:
                    here = state.get(name) or {}
                    replaced[name] = self.numbers.table({i: here[i] for i in kept if i in here})
        return {**state, **replaced} if replaced else state

    def _stays(self, hook: Any) -> bool:
        """Whether it stays in the state: torch's own, and functions that torch.package reloads."""
        if isinstance(hook, FunctionType) and self.references_stay:
            return self.is_importable(hook)
        return travels_natively(hook)

    def missed(self, root: Any, names: Callable[[], ObjectPaths]) -> list[HookSpec]:
        """The wanted hooks on parts of a module that the pickler never met.

        A class that rebuilds its parts in a ``__reduce__`` or ``__setstate__`` of its own keeps
        them from the pickle.
        """
        if not isinstance(root, torch.nn.Module):
            return []
        unseen = HookCollector(self.is_importable)
        for part in root.modules():
            if id(part) not in self._seen:
                unseen.note_hooks(part, "module")
        for tensor in (*root.parameters(), *root.buffers()):
            if id(tensor) not in self._seen and id(tensor) not in self._differentiable:
                unseen.tensor(tensor)
        if not unseen.has_news:
            return []
        specs, _ = unseen.take(names())
        return [spec for spec in specs if self.wanted(spec)]

    def unsaved(self) -> Iterator[UnsavedHook]:
        """What no package can hold: hooks on graphs, and behind handles of nothing that is saved.

        Hooks on graphs die with the graphs of the saved tensors. Leaves keep the hooks of their
        nodes.
        """
        groups = set(self._groups)
        for group in self._groups.values():
            if group.on_graph and not is_silent(group.hook.function):
                yield UnsavedHook(group.members, MULTI_GRAD, group.hook.function)
        tables: list[object] = []
        with torch._C.DisableTorchFunctionSubclass():  # a class may refuse to be asked
            found = list(self._on_graphs(groups))
        for table, hooks in found:
            tables.append(table)
            yield from hooks
        tables += [getattr(kind.home, kind.tables[0]) for kind in kinds_of("global")]
        for handle in self.handles:
            table = handle.hooks_dict_ref()
            hook = (table or {}).get(handle.id)
            if hook is None or self._owner(handle) or any(table is each for each in tables):
                continue
            part = multi_grad_part(hook)
            function = hook if part is None else part.function
            if part is not None:
                if part.key in groups:
                    continue
                groups.add(part.key)
            if not _is_trace(function):
                yield UnsavedHook(handle, HANDLE, function)

    def _on_graphs(self, groups: set[int]) -> Iterator[tuple[object, list[UnsavedHook]]]:
        """The tables of hooks that die with the graphs of tensors, each with what is in it.

        Args:
            groups: the keys of the multi-grad hooks that were met, and then also of those found.
        """
        seen: set[Any] = set()
        for tensor in self._differentiable.values():
            if tensor.is_leaf:
                continue
            hooks = []
            for hook in list((tensor._backward_hooks or {}).values()):
                part = multi_grad_part(hook)
                if part is None and not _is_trace(hook):
                    hooks.append(UnsavedHook(tensor, "tensor", hook))
                elif part is not None and part.key not in groups and not _is_trace(part.function):
                    groups.add(part.key)
                    hooks.append(UnsavedHook(tensor, MULTI_GRAD, part.function))
            yield tensor._backward_hooks, hooks
            for node in nodes_behind(tensor, seen) if RemovableHandle.next_id else ():
                if id(getattr(node, "variable", None)) in self._differentiable:
                    continue
                for moment, table in tables_of(node).items():
                    kind = "graph.node_pre" if moment == BEFORE else "graph.node"
                    hooks = [hook for hook in table.values() if not _is_trace(hook)]
                    yield table, [UnsavedHook(tensor, kind, hook, node.name()) for hook in hooks]

    @property
    def has_news(self) -> bool:
        """Whether anything was noted since the last call of :meth:`take`."""
        self._ask_nodes()
        news = self._hooks or self.parametrized or len(self.native) > self._native_taken
        return bool(news) or any(map(self._owner, self.handles))

    def take(self, names: ObjectPaths) -> tuple[list[HookSpec], dict[str, Any]]:
        """The hooks noted since the last call: their specs, and what to pickle for them.

        Args:
            names: the paths that lead to targets.

        Returns:
            The specs, and a payload with the hooks in the order in which to register them.

        Raises:
            ModpackError: parts of an attachment hang on modules that are not saved.
        """
        self._ask_nodes()
        for each in self._hooks:
            if each.group is not None:
                each.group.settle()
        collected = sorted(self._hooks, key=lambda c: c.registration_order)
        self._hooks = []
        self._native_taken = len(self.native)
        orders, self._orders = self._orders, []
        attached = self._attachment_specs(collected, names)
        specs = [attached.get(id(c.found.hook)) or self._spec(c, names) for c in collected]
        once = {spec.name: spec for spec in specs}.values()  # several hooks may share one
        wanted = [spec for spec in once if self.wanted(spec)]
        taken = {spec.name for spec in wanted}
        self.left_out.extend(spec for spec in once if spec.name not in taken)
        hooks = [
            (
                spec.name,
                c.kind,
                # as it is now: a group whose tensors turn up later is not changed any more
                c.target if c.group is None else list(c.target),
                dict(c.found.flags),
                tuple(self.numbers.of_all(c.identities)),
                c.found.hook,
            )
            for spec, c in zip(specs, collected, strict=True)
            if spec.name in taken
        ]
        payload = {
            "hooks": hooks,
            # what may have traveled in its target's state, and has to be taken off there
            "dropped": [
                (c.kind, c.target)
                for c in collected
                if KINDS[c.kind].scope in ("module", "optimizer")
            ],
            "next_id": self.numbers.following,
            "orders": orders,
            "handles": list(self._linked_handles()),
        }
        return [*wanted, *self._parametrizations(names)], payload

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
                    found = InstalledHook(identity, hook, {})
                    self._hooks.append(CapturedHook(kind.name, tensor, found, position))
                    position += 1

    def _note_tables(self, target: Any, kind: HookKind) -> None:
        for table in kind.tables:
            holder = getattr(kind.home or target, table, None)
            if holder is not None:
                self._tables[id(holder)] = (target, table)

    def _spec(self, collected: CapturedHook, names: ObjectPaths) -> HookSpec:
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

    def _attachment_specs(
        self, collected: Sequence[CapturedHook], names: ObjectPaths
    ) -> dict[int, HookSpec]:
        """The specs of attachments, by the id of each part: one for all the parts of one."""
        attachments: dict[int, list[CapturedHook]] = {}
        for each in collected:
            if isinstance(each.found.hook, GraphPart):
                attachments.setdefault(id(each.found.hook.attachment), []).append(each)
        specs: dict[int, HookSpec] = {}
        known: Counter[tuple[str, ...]] = Counter()
        for parts in attachments.values():
            hook = parts[0].found.hook
            # the modules that the attachment's spec names, in its order; a single one by itself
            named = [part for part in parts if part.found.hook.path is not None]
            modules = [part.target for part in sorted(named, key=lambda c: c.found.hook.index)]
            target = modules[0] if len(modules) == 1 else modules
            kind, flags = hook.attachment.spec.kind, hook.attachment.spec.flags
            place = (kind, *names.of(target)[0])
            found = InstalledHook(-1, hook, flags)
            spec = self._spec(CapturedHook(kind, target, found, known[place]), names)
            known[place] += 1
            if len(parts) < hook.attachment.size:
                raise ModpackError(
                    f"hook {spec.name!r} was attached to a model of which only a part is saved: it "
                    "hangs on modules that are not in this package. Remedy: save the model that it "
                    "was attached to, or remove it by its handle first"
                )
            specs.update({id(part.found.hook): spec for part in parts})
        return specs

    def _parametrizations(self, names: ObjectPaths) -> Iterator[HookSpec]:
        modules, self.parametrized = self.parametrized, []
        for module in modules:
            (path,), _ = names.of(module)
            for tensor, position, part in parametrizations_of(module):
                target = (f"{path}.{tensor}" if path else tensor,)
                name = names.hook_name(target, PARAMETRIZATION, position)
                called = describe(part, self.is_importable)
                yield HookSpec(name, PARAMETRIZATION, target, position, called)

    def _owner(self, handle: RemovableHandle) -> tuple[Any, str] | None:
        """The target that has a handle's table, and the name of the table there."""
        targets, self._without_tables = self._without_tables, []
        for target, scope in targets:  # only handles ask for tables, and few models have any
            for kind in kinds_of(scope):
                self._note_tables(target, kind)
        table = handle.hooks_dict_ref()
        return self._tables.get(id(table)) if table is not None else None

    def _linked_handles(self) -> Iterator[tuple[Any, ...]]:
        """Handles whose tables are known by now, with what tells which hooks they remove."""
        handles, self.handles = self.handles, []
        for handle in handles:
            owner = self._owner(handle)
            if owner is None:
                self.handles.append(handle)
            else:
                extras = [self._tables.get(id(ref())) for ref in handle.extra_dict_ref]
                number = self.numbers.of(handle.id)
                yield handle, *owner, number, [extra[1] for extra in extras if extra]
