"""What stands for storages in a pickle, while their bytes go elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from modpack.pickling.ordinarytensors import StoragePlace, stored_elements

__all__ = ["StorageIds"]

_Id = tuple[object, ...]


class StorageIds:
    """Makes the persistent ids of storages.

    Args:
        add: stores the bytes of one, and returns its key.
    """

    def __init__(self, add: Callable[[torch.UntypedStorage], str]) -> None:
        self._add = add

    def handler(self, kind: type) -> Callable[[Any], _Id] | None:
        """What makes the persistent id of objects of a type; None if those are no storages."""
        if kind is StoragePlace:
            return self._of_place
        if issubclass(kind, torch.storage.TypedStorage):
            return self._of_typed
        return self._of_untyped if issubclass(kind, torch.UntypedStorage) else None

    def _of_place(self, place: StoragePlace) -> _Id:
        return self._of(place.storage, *stored_elements(place))

    def _of_typed(self, typed: Any) -> _Id:
        storage_type = getattr(torch, typed._pickle_storage_type())
        return self._of(typed._untyped_storage, storage_type, typed._size())

    def _of_untyped(self, storage: torch.UntypedStorage) -> _Id:
        return self._of(storage, torch.UntypedStorage, storage.nbytes())

    def _of(self, storage: torch.UntypedStorage, storage_type: object, size: int) -> _Id:
        key = self._add(storage)
        return ("storage", storage_type, key, torch.serialization.location_tag(storage), size)
