"""Registration of hooks on loaded objects."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.utils.hooks import RemovableHandle

from modpack.core.process import find_instances
from modpack.errors import ModpackError
from modpack.hooks.graph_parts import combined_handle
from modpack.hooks.kinds import KINDS, HookKind, kinds_of
from modpack.hooks.present import PresentHooks

NewHandles = dict[tuple[int, str, int], RemovableHandle]
"""The new handle of each hook, by the target's id, torch's table, and the hook's old id."""


def register_payload(
    payload: dict[str, Any],
    wanted: Callable[[str], bool],
    global_hooks: bool,
    new_handles: NewHandles,
) -> dict[str, Any]:
    """Register the hooks of a payload through torch's public API, in their order.

    They get new ids, so hooks that are registered later overwrite none of them. A hook that its
    target's ``__setstate__`` has registered already stays, with the handle that it got there.
    Hooks that only ``__setstate__`` has registered follow the others.

    Args:
        payload: A loaded payload of :meth:`HookCollector.pop_specs`.
        wanted: Returns by name whether a hook is wanted.
        global_hooks: Whether to register process-wide hooks.
        new_handles: Handles from earlier payloads of the same load; this call adds its own.

    Returns:
        torch's handles, by hook name.

    Raises:
        ModpackError: If a kind of hook is unknown, or its target does not support this kind.
    """
    # hooks that stayed in a module's state keep their ids, so new hooks must not get these
    RemovableHandle.next_id = max(RemovableHandle.next_id, int(payload["next_id"]))
    stayed = {i for _, _, _, _, identities, _ in payload["hooks"] for i in identities}
    # The state of modules may contain the same hooks, for readers that know no specs. Registered
    # once more, they would run twice.
    for kind, target in payload["dropped"]:
        _row(kind).clear(target, stayed)
    handles: dict[str, Any] = {}
    present = PresentHooks({handle.id for handle in new_handles.values()})
    for name, kind, target, flags, identities, hook in payload["hooks"]:
        row = _row(kind)
        _require_target(row, target, name)
        if wanted(name) and (global_hooks or row.scope != "global"):
            registered = present.take(row, target, hook, flags) or row.register(target, hook, flags)
            handles[name] = combined_handle(hook, registered, handles.get(name))
            new_handles.update(_handles_by_id(row, target, identities, registered))
            present.sort(row, target, registered)
    present.sort_others()
    for target, table, identities in payload["orders"]:
        _reorder(target, table, identities, new_handles)
    for handle, owner, table, identity, extras in payload["handles"]:
        known = new_handles.get((id(owner), table, identity))
        if known is not None:
            # The loaded handle itself has to work, because other objects refer to it.
            handle.__dict__.update(known.__dict__)
        elif owner is not None:
            _link(handle, owner, table, identity, extras)
    return handles


_SCOPES: Final[dict[str, type[Any]]] = {
    "module": torch.nn.Module,
    "tensor": torch.Tensor,
    "accumulator": torch.Tensor,
    "optimizer": torch.optim.Optimizer,
}
"""The target classes of scopes. Group hooks are registered on each tensor."""


def remove_hooks(obj: Any) -> None:
    """Remove all hooks that are part of the state of modules, except torch's own."""
    for part in find_instances(obj, (torch.nn.Module,)):
        for kind in kinds_of("module"):
            kind.clear(part)


def _row(kind: str) -> HookKind:
    if kind not in KINDS:
        raise ModpackError(
            f"hooks of kind {kind!r} are unknown",
            hint="If a newer version of modpack wrote the package, upgrade modpack.",
        )
    return KINDS[kind]


def _require_target(row: HookKind, target: Any, name: str) -> None:
    """Check that torch supports this kind of hook on the target."""
    kind = _SCOPES.get(row.scope)
    if kind is not None and not issubclass(type(target), kind):
        raise ModpackError(
            f"hook {name!r:.200} of kind {row.name!r} is registered on a {type(target).__name__}, "
            f"which is not a {kind.__name__}"
        )


def _handles_by_id(
    row: HookKind, target: Any, identities: tuple[int, ...], registered: Any
) -> Iterator[tuple[tuple[int, str, int], RemovableHandle]]:
    """Yield the new handles of a hook by their keys: several for a group of tensors."""
    if row.scope == "group":
        for member, identity, handle in zip(target, identities, registered.handles, strict=True):
            yield (id(member), row.tables[0], identity), handle
    elif isinstance(registered, RemovableHandle):
        yield (id(target), row.tables[0], identities[0]), registered


def _reorder(target: Any, table: str, identities: list[int], new_handles: NewHandles) -> None:
    """Restore the common order of hooks that stayed and hooks that were registered again."""
    holder = getattr(target, table)
    # Moving each hook to the end, in order, leaves the table in that order.
    for identity in identities:
        handle = new_handles.get((id(target), table, identity))
        current = identity if handle is None else handle.id
        if current in holder:
            holder[current] = holder.pop(current)


def _link(
    handle: RemovableHandle, owner: Any, table: str, identity: int, extras: list[str]
) -> None:
    """Connect a handle with a hook in its owner's state; without such a hook it stays dead."""
    holder = getattr(owner, table, None)
    if holder and identity in holder:
        handle.id = identity
        handle.hooks_dict_ref = weakref.ref(holder)
        handle.extra_dict_ref = tuple(weakref.ref(getattr(owner, name)) for name in extras)
