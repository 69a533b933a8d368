"""Restoring hooks without a package: what the unpickler is given.

Pickles in captures name :func:`part` and :func:`handle`; their module path and signatures are
part of the format.
"""

from __future__ import annotations

import importlib
from collections import OrderedDict
from functools import cached_property
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from modpack.errors import ModpackError
from modpack.hooks.captured import HookCapture
from modpack.hooks.gradnodes import NodeKeeper, clear_node_hooks
from modpack.hooks.kinds import KINDS
from modpack.hooks.parts import part_at, roots_beside
from modpack.pickling.loading import unpickle_object
from modpack.pickling.storages import StorageLoader, storage_record

__all__ = ["Target", "handle", "part", "payloads_of", "take_off"]


def part(target: Target, index: int) -> Any:
    """A part of the model that hooks are restored onto."""
    return target.part(index)


def handle(target: Target, index: int) -> Any:
    """A handle that the model holds; a dead one if this model holds none."""
    try:
        return target.part(index)
    except ModpackError:
        return RemovableHandle(OrderedDict())


class Target:
    """The model that captured hooks are put onto."""

    last_map_location = None

    def __init__(self, model: Any, optimizer: Any, captured: HookCapture) -> None:
        self.captured = captured
        self._roots = {"model": model, **roots_beside(optimizer)}

    def part(self, index: int) -> Any:
        """A part of the model that the hooks refer to."""
        return part_at(self._roots, self.captured.paths[index])

    @property
    def zip_reader(self) -> Target:
        """Where attachments are read."""
        return self

    def get_record(self, name: str) -> bytes:
        """An attachment."""
        return self.captured.storages[name]

    # -- what storages are loaded from (modpack.pickling.storages.StorageSource) --------------

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

    def __init__(self, target: Target) -> None:
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


def payloads_of(target: Target) -> list[dict[str, Any]]:
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
