"""Registering hooks again: on objects that were loaded, and on models, from captured hooks."""

from __future__ import annotations

import importlib
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import torch
from torch.nn.utils.parametrize import is_parametrized
from torch.utils.hooks import RemovableHandle

from modpack.core.hookspec import PARAMETRIZATION, HookSpec, specs_from_json, specs_to_json
from modpack.core.process import find_instances
from modpack.errors import ModpackError
from modpack.hooks.graph_nodes import NodeKeeper, clear_node_hooks
from modpack.hooks.graph_parts import handle_of
from modpack.hooks.kinds import KINDS, MULTI_GRAD, HookKind, kinds_of, multi_grad_part
from modpack.hooks.model_parts import Path, part_at, roots_beside
from modpack.pickling.rebuild import named_in_packages
from modpack.pickling.tensor_loading import StorageLoader, storage_record
from modpack.pickling.unpickler import unpickle_object

Fresh = dict[tuple[int, str, int], RemovableHandle]
"""The new handle of each hook, by the target's id, torch's table, and the hook's old id there."""


def register_payload(
    payload: dict[str, Any],
    wanted: Callable[[str], bool],
    global_hooks: bool,
    fresh: Fresh | None = None,
) -> dict[str, Any]:
    """Register the hooks of a payload through torch's public API, in their order.

    Ids are fresh, so that a hook that is registered later overwrites none of them.

    Args:
        payload: what :meth:`HookCollector.take` made, loaded again.
        wanted: tells by name whether a hook is wanted.
        global_hooks: whether to register process-wide hooks.
        fresh: what earlier payloads of the same load left, and the next ones will need.

    Returns:
        torch's handles, by hook name.

    Raises:
        ModpackError: a kind of hook is unknown, or hangs on what can have none of that kind.
    """
    # hooks that stayed in a module's state keep their ids: new ones must not take them
    RemovableHandle.next_id = max(RemovableHandle.next_id, int(payload["next_id"]))
    for kind, target in payload["dropped"]:
        _row(kind).clear(target)
    handles: dict[str, Any] = {}
    fresh = {} if fresh is None else fresh
    for name, kind, target, flags, identities, hook in payload["hooks"]:
        row = _row(kind)
        _require_target(row, target, name)
        if wanted(name) and (global_hooks or row.scope != "global"):
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
        for part in find_instances(obj, (kind_of_part,)):
            name = type(part).__name__
            for kind in kinds_of(scope):
                if any(True for _ in kind.find(part)):
                    yield kind.name, name
            if scope == "module" and is_parametrized(part):
                yield PARAMETRIZATION, name
            hooks = list((part._backward_hooks or {}).values()) if scope == "tensor" else []
            if any(map(multi_grad_part, hooks)):
                yield MULTI_GRAD, name


_SCOPES: Final[dict[str, type[Any]]] = {
    "module": torch.nn.Module,
    "tensor": torch.Tensor,
    "accumulator": torch.Tensor,
    "optimizer": torch.optim.Optimizer,
}
"""What hooks hang on; those of groups hang on each tensor."""


def remove_hooks(obj: Any) -> None:
    """Take off every hook that traveled in the state of modules; torch's own stay."""
    for part in find_instances(obj, (torch.nn.Module,)):
        for kind in kinds_of("module"):
            kind.clear(part)


def _row(kind: str) -> HookKind:
    if kind not in KINDS:
        raise ModpackError(f"hooks of kind {kind!r} are not known; is modpack too old?")
    return KINDS[kind]


def _require_target(row: HookKind, target: Any, name: str) -> None:
    """Refuse a target that is not what torch lets one register such hooks on."""
    kind = _SCOPES.get(row.scope)
    if kind is not None and not issubclass(type(target), kind):
        raise ModpackError(
            f"the hook {name!r:.200} of kind {row.name!r} hangs on a {type(target).__name__}, "
            f"which is no {kind.__name__}"
        )


def _made(
    row: HookKind, target: Any, identities: tuple[int, ...], registered: Any
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
    """Connect a handle with the hook that traveled in its owner's state; dead if none did."""
    holder = getattr(owner, table, None)
    if holder and identity in holder:
        handle.id = identity
        handle.hooks_dict_ref = weakref.ref(holder)
        handle.extra_dict_ref = tuple(weakref.ref(getattr(owner, name)) for name in extras)


CAPTURE_VERSION = 1
"""Raise it when a reader of the old version would misunderstand a capture."""


@named_in_packages
@dataclass(frozen=True)
class HookCapture:
    """The hooks of a model, as a value: it can be pickled, and saved with :func:`torch.save`.

    Restoring it runs what is in it, like loading any pickle: restore only what you trust.

    Attributes:
        specs: what was captured.
        hooks: the pickled hooks; they refer to the model by ``paths``.
        paths: what of the model the hooks refer to.
        storages: the contents of tensors that only the hooks have, by key.
        byteorder: that of those contents.
        version: of this format.
    """

    specs: tuple[HookSpec, ...]
    hooks: bytes = field(repr=False)
    paths: tuple[Path, ...] = field(repr=False)
    storages: Mapping[str, bytes] = field(repr=False)
    byteorder: str = sys.byteorder
    version: int = CAPTURE_VERSION

    def __str__(self) -> str:
        return "\n".join(map(str, self.specs)) or "no hooks"

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: value for name, value in vars(self).items() if name != "specs"}
        return hook_capture, (specs_to_json(self.specs), fields)


@named_in_packages
def hook_capture(specs: dict[str, Any], fields: dict[str, Any]) -> HookCapture:
    """A capture that was pickled.

    Args:
        specs: what was captured, as packages record it.
        fields: the others of :class:`HookCapture`, by name.
    """
    return HookCapture(specs_from_json(specs), **fields)


@named_in_packages
def part(target: RestoreTarget, index: int) -> Any:
    """A part of the model that hooks are restored onto."""
    return target.part(index)


@named_in_packages
def handle(target: RestoreTarget, index: int) -> Any:
    """A handle that the model holds; a dead one if this model holds none."""
    try:
        return target.part(index)
    except ModpackError:
        return RemovableHandle(OrderedDict())


class RestoreTarget:
    """The model that captured hooks are put onto."""

    last_map_location = None

    def __init__(self, model: Any, optimizer: Any, captured: HookCapture) -> None:
        self.captured = captured
        self._roots = {"model": model, **roots_beside(optimizer)}

    def part(self, index: int) -> Any:
        """A part of the model that the hooks refer to."""
        return part_at(self._roots, self.captured.paths[index])

    @property
    def zip_reader(self) -> RestoreTarget:
        """Where attachments are read."""
        return self

    def get_record(self, name: str) -> bytes:
        """An attachment."""
        return self.captured.storages[name]

    # the rest is modpack.pickling.tensor_loading.StorageSource

    def has(self, name: str) -> bool:
        """Whether the capture holds a record."""
        return name == "byteorder" or name in self._records

    def read(self, name: str) -> bytes:
        """A record of the capture."""
        return self.captured.byteorder.encode() if name == "byteorder" else self._records[name]

    def copied(self, name: str) -> bytearray:
        """The same in memory of its own."""
        return bytearray(self.read(name))

    def data_range(self, name: str) -> None:
        """Nothing of it is in a file."""

    def has_changed(self) -> bool:
        """It is a value."""
        return False

    @cached_property
    def _records(self) -> dict[str, bytes]:
        return {storage_record(key): data for key, data in self.captured.storages.items()}


class _StorageLoader(StorageLoader):
    """Gives the model's own storages where hooks refer to those."""

    def __init__(self, target: RestoreTarget) -> None:
        super().__init__(target, None, "captured hooks")
        self._target = target

    def load(self, storage_type: Any, key: Any, location: Any, size: Any) -> Any:
        kind, _, index = str(key).partition(" ")
        if kind != "part":
            return super().load(storage_type, key, location, size)
        storage = self._target.part(int(index)).untyped_storage()
        if storage_type is torch.UntypedStorage:
            return storage
        dtype = torch.storage._get_dtype_from_pickle_storage_type(storage_type.__name__)
        return torch.storage.TypedStorage(  # type: ignore[no-untyped-call]
            wrap_storage=storage, dtype=dtype, _internal=True
        )


def payloads_of(target: RestoreTarget) -> list[dict[str, Any]]:
    """Load what a capture holds; its references lead into the target."""
    payloads: list[dict[str, Any]] = []
    unpickle_object(
        target.captured.hooks,
        resource="captured hooks",
        import_module=importlib.import_module,
        storages=_StorageLoader(target),
        package=target,
        on_payload=payloads.append,
    )
    return payloads


def take_off(payload: dict[str, Any]) -> None:
    """Remove the hooks of tensors on which hooks are going to be registered again."""
    for _, kind, target, *_ in payload["hooks"]:
        row = KINDS[kind]
        if row.scope in ("tensor", "group"):
            for tensor in target if row.scope == "group" else [target]:
                table = getattr(tensor, row.tables[0]) or {}
                kept = [(i, hook) for i, hook in table.items() if isinstance(hook, NodeKeeper)]
                table.clear()
                table.update(kept)
        elif row.scope == "accumulator":
            clear_node_hooks(target, kind)
