"""Collection of model hooks while an object is pickled.

The collector receives every module, tensor, and optimizer that the pickler visits, and records
their hooks. It removes from the pickled state the hooks that will be registered again after
loading. The live objects are only read.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final, NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from modpack.capturing.describe import ObjectPaths, describe, describe_hook
from modpack.capturing.parametrized import parametrizations_of
from modpack.core.hookspec import PARAMETRIZATION, HookSpec
from modpack.errors import ModpackError
from modpack.hooks.ddp import belongs_to_wrapper
from modpack.hooks.graph_nodes import (
    BEFORE,
    find_keeper,
    find_live_nodes,
    iter_graph_nodes,
    leaf_hooks,
    node_tables,
)
from modpack.hooks.graph_parts import GraphPart, OnGraph
from modpack.hooks.kinds import (
    KINDS,
    MULTI_GRAD,
    HookKind,
    InstalledHook,
    MultiGradPart,
    is_native,
    kinds_of,
    multi_grad_part,
)

FIRST_NUMBER = 1_000_000
"""torch counts hook ids from 0. In a process that reads a package with torch.package, the next
registered hook would overwrite one with a small number."""


class HookIdMap:
    """Numbers that identify hooks in a package, in place of torch's ids.

    torch counts all hooks of a process, so an id depends on what other code registered before. A
    package counts its hooks in the order in which the pickler visits them.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    @property
    def next_number(self) -> int:
        """The next number, above all that were assigned."""
        return FIRST_NUMBER + len(self._numbers)

    def map_id(self, identity: Any) -> Any:
        """Return the number of a hook id; return other values unchanged."""
        if type(identity) is not int or identity < 0:
            return identity
        return self._numbers.setdefault(identity, self.next_number)

    def map_ids(self, identities: Iterable[Any]) -> list[Any]:
        """Return the numbers of several hook ids."""
        return [self.map_id(identity) for identity in identities]

    def map_table(self, table: Mapping[Any, Any]) -> OrderedDict[Any, Any]:
        """Return a table of hooks, or of their flags, with numbers as keys."""
        return OrderedDict((self.map_id(identity), value) for identity, value in table.items())


HANDLE: Final = "handle"


class UnsavedHook(NamedTuple):
    """A hook that cannot be saved.

    target: The saved tensor whose graph has the hook, or the handle that refers to it.
    kind: The kind of hook; :data:`HANDLE` if only a handle is known.
    hook: The registered callable.
    node: The name of the graph node that the hook is registered on, if any.
    """

    target: Any
    kind: str
    hook: Any
    node: str = ""


def is_inactive(hook: object) -> bool:
    """Return whether a hook is left over from an attachment: on an old graph, or removed."""
    return isinstance(hook, OnGraph) or (isinstance(hook, GraphPart) and hook.attachment.removed)


def _is_internal(hook: object) -> bool:
    """Return whether torch or modpack registered a graph hook to implement a module hook."""
    modules = {getattr(hook, "__module__", None), type(hook).__module__}
    own = {torch.utils.hooks.__name__, torch.nn.Module.__module__}
    return is_inactive(hook) or not own.isdisjoint(modules)


class HookGroup:
    """A multi-grad hook and its tensors.

    Args:
        hook: The registered hook.

    Attributes:
        hook: The registered hook.
        members: Its tensors, in the order in which the user passed them.
        on_graph: Whether some of its tensors are intermediate ones, which die with their graph.
    """

    def __init__(self, hook: MultiGradPart) -> None:
        self.hook = hook
        variables = [getattr(node, "variable", None) for node in hook.nodes]
        self.members: list[torch.Tensor] = [each for each in variables if each is not None]
        self.on_graph = len(self.members) < len(variables)

    def sort_members(self) -> None:
        """Sort the members as the user passed them; the pickler may visit them in another order."""
        # For "all", the hook lists the nodes of its tensors. For "any", torch keeps no list, and
        # the members are in the order in which the pickler met them.
        if self.hook.mode == "any":
            positions = dict(zip(map(id, self.members), self.identities, strict=True))
            self.members.sort(key=lambda member: positions[id(member)])

    @property
    def identities(self) -> tuple[int, ...]:
        """The id of the hook on each member, or -1. A tensor that was passed twice has two ids."""
        used: set[int] = set()
        found = []
        for member in self.members:
            ids = (i for i, part in _multi_grad_parts(member) if part.key == self.hook.key)
            found.append(next((i for i in ids if i not in used), -1))
            used.add(found[-1])
        return tuple(found)


def _multi_grad_parts(tensor: torch.Tensor) -> Iterator[tuple[int, MultiGradPart]]:
    """Yield a tensor's parts of multi-grad hooks, with their ids."""
    for identity, hook in list((tensor._backward_hooks or {}).items()):
        part = multi_grad_part(hook)
        if part is not None:
            yield identity, part


class CapturedHook(NamedTuple):
    """One hook to be saved.

    Attributes:
        kind: Its row in the table of kinds; for an attachment, the kind of its spec.
        target: The module, tensor, or optimizer; a list of tensors for a group; None for
            process-wide hooks.
        found: The hook, its id, and its flags.
        position: Its position among the hooks of its kind on its target.
        rank: Its position in torch's table, which several kinds may share.
        group: The group of tensors that it is registered on, if any.
    """

    kind: str
    target: Any
    found: InstalledHook
    position: int
    rank: int = 0
    group: HookGroup | None = None

    @property
    def identities(self) -> tuple[int, ...]:
        """The hook's id on the target, or on each member of a group."""
        return (self.found.identity,) if self.group is None else self.group.identities

    @property
    def registration_order(self) -> tuple[int, int]:
        """Sort key: tensor hooks by id, across tensors; other hooks as they were recorded."""
        is_tensor = KINDS[self.kind].scope in ("tensor", "group")
        return (1, min(self.identities)) if is_tensor else (0, 0)


@dataclass
class HookCollector:
    """Records the hooks of everything that one pickler visits.

    Attributes:
        is_importable: Returns whether a function can be imported.
        wanted: Returns from a spec whether the user wants the hook in the package.
        native: Target, kind, and hook of hooks that are part of their module's state.
        references_stay: Whether importable functions stay in the modules' state, for readers that
            do not know specs.
        numbers: Maps torch's ids to numbers in the package.
        left_out: The specs of unwanted hooks.
        parametrized: Modules with parametrizations, which are part of them and only described.
        handles: Handles among the pickled objects that are not linked to their hooks yet.
        needs_modpack: Whether torch.package would lose a wanted hook or a handle.
    """

    is_importable: Callable[[FunctionType], bool]
    wanted: Callable[[HookSpec], bool] = lambda spec: True
    native: list[tuple[Any, str, Any]] = field(default_factory=list)
    left_out: list[HookSpec] = field(default_factory=list)
    references_stay: bool = True
    numbers: HookIdMap = field(default_factory=HookIdMap)
    parametrized: list[torch.nn.Module] = field(default_factory=list)
    handles: list[RemovableHandle] = field(default_factory=list)
    needs_modpack: bool = False
    _hooks: list[CapturedHook] = field(default_factory=list)
    _orders: list[tuple[Any, str, list[int]]] = field(default_factory=list)
    _native_popped: int = 0
    _seen: dict[int, Any] = field(default_factory=dict)
    _groups: dict[int, HookGroup] = field(default_factory=dict)
    _grouped: int = 0
    _tables: dict[int, tuple[Any, str]] = field(default_factory=dict)
    _without_tables: list[tuple[Any, str]] = field(default_factory=list)
    _differentiable: dict[int, torch.Tensor] = field(default_factory=dict)
    _unsearched: list[torch.Tensor] = field(default_factory=list)
    _kept_tables: list[Any] = field(default_factory=list)

    def note_hooks(self, target: Any, scope: str) -> None:
        """Record the hooks in the tables of a module, tensor, or optimizer."""
        if id(target) in self._seen:
            return
        self._seen[id(target)] = target
        self._without_tables.append((target, scope))
        recorded: list[CapturedHook] = []
        for kind in kinds_of(scope):
            table = getattr(target, kind.tables[0], None)
            if not table:  # fast path: most targets have no hooks of this kind
                continue
            # Several kinds share a table, so the place in the table differs from the position among
            # the hooks of one kind.
            ranks = {i: rank for rank, i in enumerate(table)}
            position = 0
            for found in kind.find(target):
                if is_native(found.hook):
                    self.native.append((target, kind.name, found.hook))
                    if len(ranks) > 1:  # the other hooks are registered again, between these
                        order = self.numbers.map_ids(ranks)
                        self._orders.append((target, kind.tables[0], order))
                    continue
                if is_inactive(found.hook) or belongs_to_wrapper(found.hook):
                    continue
                rank = ranks[found.identity]
                recorded.append(CapturedHook(kind.name, target, found, position, rank))
                position += not isinstance(found.hook, GraphPart)  # those have names of their own
        # Registering a hook again appends it to its table, so the order must be that of the table,
        # across the kinds that share it.
        self._hooks.extend(sorted(recorded, key=lambda c: (KINDS[c.kind].tables[0], c.rank)))

    def note_hook(self, kind: str, target: Any, hook: Any, position: int) -> None:
        """Record a hook that is in no table of its target."""
        self._hooks.append(CapturedHook(kind, target, InstalledHook(-1, hook, {}), position))

    def note_tensor(self, tensor: torch.Tensor) -> None:
        """Record the hooks of a leaf tensor."""
        self.note_differentiable(tensor)
        if id(tensor) in self._seen or not (
            tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None)
        ):
            return
        self.note_hooks(tensor, "tensor")
        for key, part in {part.key: part for _, part in _multi_grad_parts(tensor)}.items():
            # Each tensor of a group has a part of the hook, which is recorded once.
            if key not in self._groups:
                group = self._groups[key] = HookGroup(part)
                if not (group.on_graph or is_inactive(part.function)):
                    found = InstalledHook(-1, part.function, {"mode": part.mode})
                    position, self._grouped = self._grouped, self._grouped + 1
                    self._hooks.append(
                        CapturedHook(MULTI_GRAD, group.members, found, position, group=group)
                    )
            # Only the parts for `all` refer to the other tensors of their group.
            if part.mode == "any":
                self._groups[key].members.append(tensor)

    def note_differentiable(self, tensor: torch.Tensor) -> None:
        """Record a tensor whose graph may have hooks; the graphs are searched later, together."""
        if id(tensor) not in self._differentiable:
            self._differentiable[id(tensor)] = tensor
            self._unsearched.append(tensor)

    def note_global_hooks(self) -> None:
        """Record the process-wide hooks."""
        for kind in kinds_of("global"):
            self._note_tables(None, kind)
            self._hooks.extend(
                CapturedHook(kind.name, None, found, position)
                for position, found in enumerate(kind.find(kind.global_module))
            )

    def state_without_hooks(self, state: Any) -> Any:
        """Return a module's state without the hooks that are registered again after loading."""
        if not isinstance(state, dict):
            return state
        replaced: dict[str, dict[int, Any]] = {}
        for kind in kinds_of("module"):
            table, *flags = kind.tables
            if isinstance(state.get(table), dict) and state[table]:
                kept = {i: hook for i, hook in list(state[table].items()) if self._stays(hook)}
                replaced[table] = self.numbers.map_table(kept)
                # A flag without its hook would apply to the next hook that gets the same ID.
                for name in flags:
                    held = state.get(name) or {}
                    replaced[name] = self.numbers.map_table({i: held[i] for i in kept if i in held})
        return {**state, **replaced} if replaced else state

    def _is_in_state(self, each: CapturedHook) -> bool:
        """Return whether torch.package's reader registers a hook as well."""
        kind = KINDS[each.kind]
        if kind.scope != "module" or hasattr(type(each.target), "__reduce_package__"):
            return False
        table = getattr(each.target, kind.tables[0])
        return all(self._stays(table.get(identity)) for identity in each.identities)

    def _stays(self, hook: Any) -> bool:
        """Return whether a hook stays in the state of its module: torch's own, or importable."""
        if isinstance(hook, FunctionType) and self.references_stay:
            return self.is_importable(hook)
        return is_native(hook)

    def find_unvisited_hooks(self, root: Any, names: Callable[[], ObjectPaths]) -> list[HookSpec]:
        """Return the wanted hooks on submodules and tensors that the pickler never visited.

        A class whose ``__reduce__`` or ``__setstate__`` rebuilds them does not pass them to pickle.
        """
        if not isinstance(root, torch.nn.Module):
            return []
        unseen = HookCollector(self.is_importable)
        for part in root.modules():
            if id(part) not in self._seen:
                unseen.note_hooks(part, "module")
        for tensor in (*root.parameters(), *root.buffers()):
            if id(tensor) not in self._seen and id(tensor) not in self._differentiable:
                unseen.note_tensor(tensor)
        if not unseen.has_pending:
            return []
        specs, _ = unseen.pop_specs(names())
        return [spec for spec in specs if self.wanted(spec)]

    def find_unsaved(self) -> Iterator[UnsavedHook]:
        """Yield the hooks that no package can contain.

        These are hooks on graphs, which die with the graphs of the saved tensors, and hooks that
        only a handle refers to. The hooks on the nodes of leaves are not among them.
        """
        groups = set(self._groups)
        for group in self._groups.values():
            if group.on_graph and not is_inactive(group.hook.function):
                yield UnsavedHook(group.members, MULTI_GRAD, group.hook.function)
        tables: list[object] = []
        with torch._C.DisableTorchFunctionSubclass():  # a subclass may reject the calls
            found = list(self._on_graphs(groups))
        for table, hooks in found:
            tables.append(table)
            yield from hooks
        tables += [getattr(kind.global_module, kind.tables[0]) for kind in kinds_of("global")]
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
            if not _is_internal(function):
                yield UnsavedHook(handle, HANDLE, function)

    def _on_graphs(self, groups: set[int]) -> Iterator[tuple[object, list[UnsavedHook]]]:
        """Yield the hook tables that die with the graphs of tensors, each with its hooks.

        Args:
            groups: The keys of known multi-grad hooks; those found here are added.
        """
        seen: set[Any] = set()
        for tensor in self._differentiable.values():
            if tensor.is_leaf:
                continue
            hooks = []
            for hook in list((tensor._backward_hooks or {}).values()):
                part = multi_grad_part(hook)
                if part is None and not _is_internal(hook):
                    hooks.append(UnsavedHook(tensor, "tensor", hook))
                elif (
                    part is not None and part.key not in groups and not _is_internal(part.function)
                ):
                    groups.add(part.key)
                    hooks.append(UnsavedHook(tensor, MULTI_GRAD, part.function))
            yield tensor._backward_hooks, hooks
            # A process that never made a handle has no hooks on nodes: a graph may have a million
            # nodes.
            for node in iter_graph_nodes(tensor, seen) if RemovableHandle.next_id else ():
                if id(getattr(node, "variable", None)) in self._differentiable:
                    continue
                for moment, table in node_tables(node).items():
                    kind = "graph.node_pre" if moment == BEFORE else "graph.node"
                    hooks = [hook for hook in table.values() if not _is_internal(hook)]
                    yield table, [UnsavedHook(tensor, kind, hook, node.name()) for hook in hooks]

    @property
    def has_pending(self) -> bool:
        """Whether anything was recorded since the last call of :meth:`pop_specs`."""
        self._search_nodes()
        pending = self._hooks or self.parametrized or len(self.native) > self._native_popped
        return bool(pending) or any(map(self._owner, self.handles))

    def pop_specs(self, names: ObjectPaths) -> tuple[list[HookSpec], dict[str, Any]]:
        """Return the specs of the hooks recorded since the last call, and what to pickle for them.

        Args:
            names: The paths of targets.

        Returns:
            The specs, and a payload with the hooks in the order in which to register them.

        Raises:
            ModpackError: If parts of an attachment are registered on modules that are not saved.
        """
        self._search_nodes()
        for each in self._hooks:
            if each.group is not None:
                each.group.sort_members()
        # A stable sort: hooks that are not on tensors keep the order in which they were recorded.
        collected = sorted(self._hooks, key=lambda c: c.registration_order)
        self._hooks = []
        self._native_popped = len(self.native)
        orders, self._orders = self._orders, []
        attached = self._attachment_specs(collected, names)
        specs = [attached.get(id(c.found.hook)) or self._spec(c, names) for c in collected]
        once = {spec.name: spec for spec in specs}.values()  # several hooks may share one
        wanted = [spec for spec in once if self.wanted(spec)]
        kept = {spec.name for spec in wanted}
        self.left_out.extend(spec for spec in once if spec.name not in kept)
        hooks = [
            (
                spec.name,
                c.kind,
                # a copy: members that the pickler visits later must not change the payload
                c.target if c.group is None else list(c.target),
                dict(c.found.flags),
                tuple(self.numbers.map_ids(c.identities)),
                c.found.hook,
            )
            for spec, c in zip(specs, collected, strict=True)
            if spec.name in kept
        ]
        payload = {
            "hooks": hooks,
            # hooks that may also be in their target's state, and must be removed there
            "dropped": [
                (c.kind, c.target)
                for c in collected
                if KINDS[c.kind].scope in ("module", "optimizer")
            ],
            "next_id": self.numbers.next_number,
            "orders": orders,
            "handles": list(self._linked_handles()),
        }
        self.needs_modpack |= bool(payload["handles"]) or any(
            spec.name in kept and not self._is_in_state(c)
            for spec, c in zip(specs, collected, strict=True)
        )
        return [*wanted, *self._parametrizations(names)], payload

    def _search_nodes(self) -> None:
        """Record the hooks of the nodes that accumulate the gradients of leaves."""
        tensors, self._unsearched = self._unsearched, []
        with torch._C.DisableTorchFunctionSubclass():  # subclasses may not support these calls
            leaves = [tensor for tensor in tensors if tensor.is_leaf]
            nodes = {id(tensor): node for tensor, node in find_live_nodes(leaves)}
            for tensor in leaves:
                if id(tensor) in nodes or tensor._backward_hooks:
                    self._note_node(tensor, nodes.get(id(tensor)))

    def _note_node(self, tensor: torch.Tensor, node: Any) -> None:
        on_node = {} if node is None else node_tables(node)
        keeper = find_keeper(tensor)
        for tables in (on_node, {} if keeper is None else keeper.tables):
            self._tables.update({id(table): (tensor, name) for name, table in tables.items()})
        self._kept_tables.append(on_node)  # keep it alive, so that no other table gets its id
        for kind in kinds_of("accumulator"):
            position = 0
            for identity, hook in leaf_hooks(tensor, kind.name, on_node.get(kind.name, {})):
                if not is_inactive(hook) and not belongs_to_wrapper(hook):
                    found = InstalledHook(identity, hook, {})
                    self._hooks.append(CapturedHook(kind.name, tensor, found, position))
                    position += 1

    def _note_tables(self, target: Any, kind: HookKind) -> None:
        for table in kind.tables:
            holder = getattr(kind.global_module or target, table, None)
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
        """Return the specs of attachments by the id of each part; an attachment has one spec."""
        attachments: dict[int, list[CapturedHook]] = {}
        for each in collected:
            if isinstance(each.found.hook, GraphPart):
                attachments.setdefault(id(each.found.hook.attachment), []).append(each)
        specs: dict[int, HookSpec] = {}
        known: Counter[tuple[str, ...]] = Counter()
        for parts in attachments.values():
            hook = parts[0].found.hook
            # the modules that the attachment's spec names, in its order; a single one is not a list
            named = [part for part in parts if part.found.hook.path is not None]
            modules = [part.target for part in sorted(named, key=lambda c: c.found.hook.index)]
            target = modules[0] if len(modules) == 1 else modules
            kind, flags = hook.attachment.spec.kind, hook.attachment.spec.flags
            key = (kind, *names.of(target)[0])
            found = InstalledHook(-1, hook, flags)
            spec = self._spec(CapturedHook(kind, target, found, known[key]), names)
            known[key] += 1
            if len(parts) < hook.attachment.size:
                raise ModpackError(
                    f"hook {spec.name!r} is also registered on modules that are not saved, because "
                    "only a part of its model is saved",
                    hint="Save the whole model, or remove the hook by its handle first.",
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
        """Return the target with a handle's table, and the name of the table."""
        targets, self._without_tables = self._without_tables, []
        for target, scope in targets:  # deferred until a handle needs it, because few models do
            for kind in kinds_of(scope):
                self._note_tables(target, kind)
        table = handle.hooks_dict_ref()
        return self._tables.get(id(table)) if table is not None else None

    def _linked_handles(self) -> Iterator[tuple[Any, ...]]:
        """Yield the handles whose tables are known, with what identifies the hooks they remove."""
        handles, self.handles = self.handles, []
        for handle in handles:
            owner = self._owner(handle)
            if owner is None:
                self.handles.append(handle)
            else:
                extras = [self._tables.get(id(ref())) for ref in handle.extra_dict_ref]
                number = self.numbers.map_id(handle.id)
                yield handle, *owner, number, [extra[1] for extra in extras if extra]
