"""Specs for what was attached: one for all the module hooks that carry it out.

The numbers by which a package tells hooks apart, in place of the ids that torch gave them.

Torch counts all hooks of a process: an id tells how many were registered before, by anybody. In a
package the hooks are counted as they are met.

Hooks that no package can hold: on nodes of graphs, and those that only a handle leads to.

Collecting hooks while an object is pickled: no module, tensor or optimizer is missed.

Whatever the pickler meets goes past the collector: it notes what hangs there, and keeps from
the pickled state what will be registered again after loading. The live objects are only read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final

import torch
from torch.utils.hooks import RemovableHandle

from modpack.core.hookspec import PARAMETRIZATION, HookSpec
from modpack.errors import ModpackError
from modpack.hooks.ddp import belongs_to_wrapper
from modpack.hooks.describe import Names, describe, describe_hook
from modpack.hooks.graph_nodes import (
    BEFORE,
    hooks_of_leaf,
    keeper_of,
    living_nodes,
    nodes_behind,
    tables_of,
)
from modpack.hooks.graph_parts import Attachment, OnGraph, Part
from modpack.hooks.kinds import (
    KINDS,
    MULTI_GRAD,
    Found,
    Group,
    Groups,
    Kind,
    kinds_of,
    multi_grad_parts,
    travels_natively,
)
from modpack.hooks.parametrized import parametrizations_of


def is_silent(hook: object) -> bool:
    """Whether a hook is only a trace of an attachment: on an old graph, or removed."""
    return isinstance(hook, OnGraph) or (isinstance(hook, Part) and hook.attachment.removed)


def attachment_specs(
    collected: Sequence[Collected], names: Names, is_importable: Callable[[FunctionType], bool]
) -> dict[int, HookSpec]:
    """The specs of all attachments whose parts were noted, by the id of each part.

    Raises:
        ModpackError: parts of an attachment hang on modules that are not saved.
    """
    groups: dict[int, list[Collected]] = {}
    for each in collected:
        if isinstance(each.found.hook, Part):
            groups.setdefault(id(each.found.hook.attachment), []).append(each)
    specs: dict[int, HookSpec] = {}
    known: dict[tuple[str, ...], int] = {}
    for parts in groups.values():
        attachment = parts[0].found.hook.attachment
        target, aliases = names.of(_target(parts))
        place = (attachment.spec.kind, *target)
        spec = _spec(attachment, target, aliases, known.get(place, 0), parts, is_importable)
        _refuse_incomplete(attachment, parts, spec.name)
        known[place] = spec.position + 1
        specs.update({id(part.found.hook): spec for part in parts})
    return specs


def _target(parts: list[Collected]) -> object:
    """The modules that the attachment's spec names, in its order; a single one by itself."""
    named = [part for part in parts if part.found.hook.path is not None]
    modules = [part.target for part in sorted(named, key=lambda part: part.found.hook.index)]
    return modules[0] if len(modules) == 1 else modules


def _spec(
    attachment: Attachment,
    target: tuple[str, ...],
    aliases: tuple[str, ...],
    position: int,
    parts: list[Collected],
    is_importable: Callable[[FunctionType], bool],
) -> HookSpec:
    kind = attachment.spec.kind
    return HookSpec(
        name=Names.hook_name(target, kind, position),
        kind=kind,
        target=target,
        position=position,
        callable=describe_hook(parts[0].found.hook, is_importable),
        aliases=aliases,
        flags=attachment.spec.flags,
    )


def _refuse_incomplete(attachment: Attachment, parts: list[Collected], name: str) -> None:
    if len(parts) < attachment.size:
        raise ModpackError(
            f"hook {name!r} was attached to a model of which only a part is saved: it hangs on "
            "modules that are not in this package. Remedy: save the model that it was attached "
            "to, or remove it by its handle first"
        )


FIRST = 1_000_000
"""The first number. In a process that reads the package with torch.package, torch counts from 0:
the next hook to be registered would overwrite one that has a small number."""


class HookNumbers:
    """Gives each id a number, the same one each time."""

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


class LiveIds(HookNumbers):
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
