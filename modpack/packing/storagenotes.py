"""Large storages of which saved tensors use little: a view is saved with all of its storage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from modpack.core.plan import Note, NoteKind
from modpack.core.storageuse import StorageView, bytes_used, is_mostly_unused
from modpack.pickling.paths import with_paths
from modpack.pickling.storages import StorageSaver
from modpack.pickling.storageviews import view_of_large
from modpack.report.wording import human_size

__all__ = ["StorageNotes"]

_SHOWN: Final = 3


@dataclass
class _Use:
    """What is known of a large storage.

    Attributes:
        record: the saved object that brought it.
        size: its bytes.
        views: the parts of it that were saved, in whichever object.
        is_whole: whether it was saved as a storage, too.
        paths: where the tensors hang that it was saved for.
    """

    record: str
    size: int
    views: set[StorageView] = field(default_factory=set)
    is_whole: bool = False
    paths: dict[str, None] = field(default_factory=dict)

    @property
    def used(self) -> int:
        return self.size if self.is_whole else bytes_used(self.views)

    @property
    def is_worth_telling(self) -> bool:
        return is_mostly_unused(self.size, self.used)


class StorageNotes:
    """Watches over the storages of one package.

    Args:
        storages: those that were written.
    """

    def __init__(self, storages: StorageSaver) -> None:
        self._storages = storages
        self._uses: dict[str, _Use] = {}

    def look_at(self, record: str, reductions: Iterable[Any], roots: Mapping[str, object]) -> None:
        """Look at an object that has just been saved.

        Args:
            record: its record.
            reductions: those of its tensors.
            roots: the object, and what was saved along with it, by what to call them.
        """
        if not self._storages.large:
            return
        wasteful = {key for key in self._note_views(record, reductions) if self._is_wasteful(key)}
        if wasteful:  # seldom: the object is searched for places only then
            self._note_places(wasteful, roots)

    def notes(self) -> Iterator[Note]:
        """What a user should know about, in the order in which it was saved."""
        return (_note(use) for use in self._uses.values() if use.is_worth_telling)

    def _note_views(self, record: str, reductions: Iterable[Any]) -> set[str]:
        """Remember the views of large storages; returns the keys of these."""
        met = set()
        for found in filter(None, map(view_of_large, reductions)):
            storage, view = found
            key = self._storages.key_of(storage)
            if key is not None:
                use = self._uses.setdefault(key, _Use(record, storage.nbytes()))
                use.views.add(view)
                met.add(key)
        return met

    def _is_wasteful(self, key: str) -> bool:
        return self._uses[key].is_worth_telling

    def _note_places(self, keys: set[str], roots: Mapping[str, object]) -> None:
        for name, root in roots.items():
            for obj, path in with_paths(root, name):
                storage, is_tensor = _storage_of(obj)
                key = None if storage is None else self._storages.key_of(storage)
                if key in keys:
                    self._uses[key].is_whole |= not is_tensor
                    self._uses[key].paths[path] = None


def _storage_of(obj: Any) -> tuple[torch.UntypedStorage | None, bool]:
    """The storage behind an object, if there is one, and whether the object is a tensor."""
    kind = type(obj)
    if issubclass(kind, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            return (obj.untyped_storage() if torch._C._has_storage(obj) else None), True
    if issubclass(kind, torch.UntypedStorage):
        return obj, False
    return (obj._untyped_storage if issubclass(kind, torch.TypedStorage) else None), False


def _note(use: _Use) -> Note:
    paths = list(use.paths) or [f"a tensor of {use.record}"]
    names = ", ".join(paths[:_SHOWN])
    if len(paths) > _SHOWN:
        names += f" and {len(paths) - _SHOWN} more"
    verb, copies = ("use", "copies of them") if len(paths) > 1 else ("uses", "a copy of it")
    text = (
        f"{names} {verb} {human_size(use.used)} of a storage of {human_size(use.size)}, and a "
        f"storage is saved in full. If the rest is not needed, save {copies} (.clone())"
    )
    return Note(NoteKind.STORAGE_MOSTLY_UNUSED, paths[0], text)
