"""Registration of hooks on loaded objects, and of captured hooks on models."""

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
from modpack.hooks.choice import HookChoice, check_names, selector
from modpack.hooks.ddp import unwrap
from modpack.hooks.graph_nodes import NodeKeeper, clear_node_hooks
from modpack.hooks.graph_parts import combined_handle
from modpack.hooks.kinds import KINDS, MULTI_GRAD, HookKind, kinds_of, multi_grad_part
from modpack.hooks.model_parts import Path, extra_roots, require_model, resolve_path
from modpack.hooks.present import PresentHooks
from modpack.pickling.rebuild import named_in_packages
from modpack.pickling.tensor_loading import StorageLoader, storage_record
from modpack.pickling.unpickler import unpickle_object

NewHandles = dict[tuple[int, str, int], RemovableHandle]
"""The new handle of each hook, by the target's id, torch's table, and the hook's old id."""


def register_payload(
    payload: dict[str, Any],
    wanted: Callable[[str], bool],
    global_hooks: bool,
    new_handles: NewHandles | None = None,
    *,
    replaces: bool = False,
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
        replaces: Whether to remove all hooks of the same kinds first.

    Returns:
        torch's handles, by hook name.

    Raises:
        ModpackError: If a kind of hook is unknown, or its target does not support this kind.
    """
    # hooks that stayed in a module's state keep their ids, so new hooks must not get these
    RemovableHandle.next_id = max(RemovableHandle.next_id, int(payload["next_id"]))
    stayed = {i for _, _, _, _, identities, _ in payload["hooks"] for i in identities}
    for kind, target in payload["dropped"]:
        _row(kind).clear(target, None if replaces else stayed)
    handles: dict[str, Any] = {}
    new_handles = {} if new_handles is None else new_handles
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
            handle.__dict__.update(known.__dict__)
        elif owner is not None:
            _link(handle, owner, table, identity, extras)
    return handles


def iter_hook_kinds(obj: Any) -> Iterator[tuple[str, str]]:
    """Yield kind and target class of hooks on an object's modules, tensors, and optimizers."""
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


CAPTURE_VERSION = 1
"""Increase it if readers of the old version would misread a new capture."""


@named_in_packages
@dataclass(frozen=True)
class HookCapture:
    """The hooks of a model, as a value that can be pickled and saved with :func:`torch.save`.

    Restoring a capture executes its contents, as loading any pickle does. Only restore captures
    that you trust.

    Attributes:
        specs: The specs of the captured hooks.
        hooks: The pickled hooks; they refer to the model by ``paths``.
        paths: The parts of the model that the hooks refer to.
        storages: The contents of tensors that only the hooks refer to, by key.
        byteorder: The byte order of these contents.
        version: The version of this format.
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
    """Return an unpickled capture.

    Args:
        specs: The specs, as packages record them.
        fields: The other fields of :class:`HookCapture`, by name.
    """
    return HookCapture(specs_from_json(specs), **fields)


@named_in_packages
def part(target: RestoreTarget, index: int) -> Any:
    """Return a part of the model that hooks are restored on."""
    return target.part(index)


@named_in_packages
def handle(target: RestoreTarget, index: int) -> Any:
    """Return a handle that the model refers to; a dead one if this model has none."""
    try:
        return target.part(index)
    except ModpackError:
        return RemovableHandle(OrderedDict())


class RestoreTarget:
    """The model that captured hooks are restored on."""

    last_map_location = None

    def __init__(self, model: Any, optimizer: Any, captured: HookCapture) -> None:
        self.captured = captured
        self._roots = {"model": model, **extra_roots(optimizer)}

    def part(self, index: int) -> Any:
        """Return a part of the model that the hooks refer to."""
        return resolve_path(self._roots, self.captured.paths[index])

    @property
    def zip_reader(self) -> RestoreTarget:
        """The source of attachments."""
        return self

    def get_record(self, name: str) -> bytes:
        """Return an attachment."""
        return self.captured.storages[name]

    # The other methods implement modpack.pickling.tensor_loading.StorageSource.

    def has(self, name: str) -> bool:
        """Return whether the capture contains a record."""
        return name == "byteorder" or name in self._records

    def read(self, name: str) -> bytes:
        """Return a record of the capture."""
        return self.captured.byteorder.encode() if name == "byteorder" else self._records[name]

    def read_copy(self, name: str) -> bytearray:
        """Return a record of the capture as a new bytearray."""
        return bytearray(self.read(name))

    def data_range(self, name: str) -> None:
        """Return None: a capture is not a file."""

    def has_changed(self) -> bool:
        """Return False: a capture is immutable."""
        return False

    @cached_property
    def _records(self) -> dict[str, bytes]:
        return {storage_record(key): data for key, data in self.captured.storages.items()}


class _StorageLoader(StorageLoader):
    """Returns the model's own storages where hooks refer to them."""

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


def load_payloads(target: RestoreTarget) -> list[dict[str, Any]]:
    """Load the payloads of a capture; their references lead to the target."""
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


def detach_hooks(payload: dict[str, Any]) -> None:
    """Remove the hooks of tensors on which hooks will be registered again."""
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


def restore(
    model: torch.nn.Module,
    captured: HookCapture,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    hooks: HookChoice = True,
    global_hooks: bool = False,
) -> dict[str, Any]:
    """Register captured hooks on a model: a copy of the captured one, or one built like it.

    The hooks refer to this model's parameters, modules, and containers. Existing hooks of the same
    kinds on these modules and tensors are removed first.

    Args:
        model: The model.
        captured: The return value of :func:`modpack.hooks.capture`.
        optimizer: Its optimizer, if the hooks were captured with one.
        hooks: The hooks to restore: True, False, names, or a predicate over specs.
        global_hooks: Whether to register captured process-wide hooks.

    Returns:
        Handles by hook name.

    Raises:
        TypeError: If an argument has another type.
        ValueError: If no hook has a chosen name.
        ModpackError: If the hooks refer to a part that this model does not have.
        UnpicklingError: If a hook requires a module that cannot be imported.
    """
    require_model(model, optimizer)
    if not isinstance(captured, HookCapture):
        raise TypeError(f"captured must be a HookCapture, not {type(captured).__name__}")
    if captured.version != CAPTURE_VERSION:
        raise ModpackError(
            f"hook captures of version {captured.version!r} are not supported, only version "
            f"{CAPTURE_VERSION}",
            hint="Upgrade modpack, or capture the hooks again with this version.",
        )
    check_names(hooks, captured.specs)
    wanted = frozenset(spec.name for spec in captured.specs if selector(hooks)(spec))
    payloads = load_payloads(RestoreTarget(unwrap(model), optimizer, captured))
    for payload in payloads:
        detach_hooks(payload)
    handles: dict[str, Any] = {}
    new_handles: NewHandles = {}
    for payload in payloads:
        names = wanted.__contains__
        handles.update(register_payload(payload, names, global_hooks, new_handles, replaces=True))
        for held, attachment in payload["graph_handles"]:
            held.attachment = attachment
    return handles
