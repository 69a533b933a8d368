"""Registering hooks again, on objects that were loaded."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import torch
from torch.nn.utils.parametrize import is_parametrized
from torch.utils.hooks import RemovableHandle

from modpack.core.hookspec import PARAMETRIZATION
from modpack.errors import ModpackError
from modpack.hooks.graphbound import handle_of
from modpack.hooks.groups import multi_grad_parts
from modpack.hooks.kinds import KINDS, MULTI_GRAD, Kind, kinds_of
from modpack.hooks.loadedmodules import instances_in, modules_in
from modpack.hooks.native import travels_natively

__all__ = ["Fresh", "kinds_in", "register_payload", "remove_hooks"]


Fresh = dict[tuple[int, str, int], RemovableHandle]
"""The new handle of each hook, by the target's id, torch's table, and the hook's old id there."""


def register_payload(
    payload: dict[str, Any],
    wanted: Callable[[str], bool],
    restore_global: bool,
    fresh: Fresh | None = None,
) -> dict[str, Any]:
    """Register the hooks of a payload through torch's public API, in their order.

    Ids are fresh, so that a hook that is registered later overwrites none of them.

    Args:
        payload: what :meth:`HookCollector.take` made, loaded again.
        wanted: tells by name whether a hook is wanted.
        restore_global: whether to register process-wide hooks.
        fresh: what earlier payloads of the same load left, and the next ones will need.

    Returns:
        torch's handles, by hook name.

    Raises:
        ModpackError: a kind of hook is unknown, or hangs on what can have none of that kind.
    """
    # hooks that stayed in a module's state keep their ids: new ones must not take them
    RemovableHandle.next_id = max(RemovableHandle.next_id, int(payload["next_id"]))
    for kind, target in payload["dropped"]:
        _row(kind).clear(target, travels_natively)
    handles: dict[str, Any] = {}
    fresh = {} if fresh is None else fresh
    for name, kind, target, flags, identities, hook in payload["hooks"]:
        row = _row(kind)
        _require_target(row, target, name)
        if wanted(name) and (restore_global or row.scope != "global"):
            registered = row.register(target, hook, flags)
            handles[name] = handle_of(hook, registered, handles.get(name))
            fresh.update(_made(row, target, identities, registered))
    for target, table, identities in payload["orders"]:
        _reorder(target, table, identities, fresh)
    for handle, owner, table, identity, extras in payload["handles"]:
        known = fresh.get((id(owner), table, identity))
        if known is not None:
            handle.__dict__.update(known.__dict__)
        elif owner is not None:
            _link(handle, owner, table, identity, extras)
    return handles


def kinds_in(obj: Any) -> Iterator[tuple[str, str]]:
    """The kinds of hooks that modules, tensors and optimizers in an object have, with the class."""
    for scope, kind_of_part in _SCOPES.items():
        for part in cast("Iterator[Any]", instances_in(obj, (kind_of_part,))):
            name = type(part).__name__
            for kind in kinds_of(scope):
                if any(True for _ in kind.find(part)):
                    yield kind.name, name
            if scope == "module" and is_parametrized(part):
                yield PARAMETRIZATION, name
            if scope == "tensor" and any(map(multi_grad_parts, _backward_hooks_of(part))):
                yield MULTI_GRAD, name


_SCOPES: Final = {
    "module": torch.nn.Module,
    "tensor": torch.Tensor,
    "accumulator": torch.Tensor,
    "optimizer": torch.optim.Optimizer,
}
"""What hooks hang on; those of groups hang on each tensor."""


def _backward_hooks_of(tensor: torch.Tensor) -> list[Any]:
    return list((tensor._backward_hooks or {}).values())


def remove_hooks(obj: Any) -> None:
    """Take off every hook that travelled in the state of modules; torch's own stay."""
    for part in modules_in(obj):
        for kind in kinds_of("module"):
            kind.clear(part, travels_natively)
        if not part._backward_hooks:
            part._is_full_backward_hook = None


def _row(kind: str) -> Kind:
    if kind not in KINDS:
        raise ModpackError(f"hooks of kind {kind!r} are not known; is modpack too old?")
    return KINDS[kind]


def _require_target(row: Kind, target: Any, name: str) -> None:
    """Refuse a target that is not what torch lets one register such hooks on."""
    kind = _SCOPES.get(row.scope)
    if kind is not None and not issubclass(type(target), kind):
        raise ModpackError(
            f"the hook {name!r:.200} of kind {row.name!r} hangs on a {type(target).__name__}, "
            f"which is no {kind.__name__}"
        )


def _made(
    row: Kind, target: Any, identities: tuple[int, ...], registered: Any
) -> Iterator[tuple[tuple[int, str, int], RemovableHandle]]:
    """The handles that were made for a hook: several for a group of tensors."""
    if row.scope == "group":
        for member, identity, handle in zip(target, identities, registered.handles, strict=True):
            yield (id(member), row.tables[0], identity), handle
    elif isinstance(registered, RemovableHandle):
        yield (id(target), row.tables[0], identities[0]), registered


def _reorder(target: Any, table: str, identities: list[int], fresh: Fresh) -> None:
    """Bring hooks that stayed and hooks that were registered again into their common order."""
    holder = getattr(target, table)
    for identity in identities:
        handle = fresh.get((id(target), table, identity))
        now = identity if handle is None else handle.id
        if now in holder:
            holder[now] = holder.pop(now)


def _link(
    handle: RemovableHandle, owner: Any, table: str, identity: int, extras: list[str]
) -> None:
    """Connect a handle with the hook that travelled in its owner's state; dead if none did."""
    holder = getattr(owner, table, None)
    if holder and identity in holder:
        handle.id = identity
        handle.hooks_dict_ref = weakref.ref(holder)
        handle.extra_dict_ref = tuple(weakref.ref(getattr(owner, name)) for name in extras)
