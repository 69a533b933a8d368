"""Where loaded tensors go: what ``map_location`` says, and nothing else that is around.

Storages: the bytes of tensors, written once and mapped back.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch

from modpack.core.progress import advance
from modpack.errors import DeviceNotFoundError, UnpicklingError


def restoring(map_location: object) -> Callable[[torch.UntypedStorage, str], torch.UntypedStorage]:
    """What torch.load does with its ``map_location``, once that is known to make sense.

    Raises:
        TypeError, ValueError: it is nothing that torch takes.
    """
    known = (str, torch.device, dict)
    if not (map_location is None or isinstance(map_location, known) or callable(map_location)):
        raise TypeError(
            "map_location must be None, a device, a dict of devices or a function, "
            f"not {type(map_location).__name__}"
        )
    if isinstance(map_location, str):
        try:
            torch.device(map_location)
        except RuntimeError as failure:
            raise ValueError(f"map_location {map_location!r} is no device: {failure}") from failure
    restore = torch.serialization._get_restore_location(map_location)  # type: ignore[no-untyped-call]
    return restore  # type: ignore[no-any-return]


@contextmanager
def placing(map_location: object) -> Iterator[None]:
    """While objects are loaded: where tensors go that have no storage of their own.

    torch's functions that make such tensors again, as wrappers of others, ask for it themselves.

    Args:
        map_location: what the storages' loader was given.
    """
    told: Any = torch.serialization._serialization_tls
    before, told.map_location = told.map_location, map_location
    try:
        yield
    finally:
        told.map_location = before


def wants_fakes() -> bool:
    """Whether a FakeTensorMode is on, in which tensors have no content."""
    return torch._guards.detect_fake_mode(None) is not None


def fake_storage(size: int, location: str) -> torch.UntypedStorage:
    """What torch.load makes of a storage in a FakeTensorMode.

    Args:
        size: its size in bytes.
        location: torch's location tag.
    """
    storage: Any = torch.UntypedStorage(size, device="meta")  # type: ignore[no-untyped-call]
    storage._fake_device = location
    return storage  # type: ignore[no-any-return]


def storage_record(key: str) -> str:
    """The record that holds a storage."""
    return f".data/{key}.storage"


def storage_bytes(storage: torch.UntypedStorage) -> memoryview:
    """A storage's bytes; its own memory where that is the CPU's, else a copy."""
    on_cpu = storage if storage.device.type == "cpu" else storage.cpu()  # type: ignore[no-untyped-call]
    size = on_cpu.nbytes()
    if size == 0:
        return memoryview(b"")
    memory = _bytes_of_size(size).from_address(on_cpu.data_ptr())
    memory._storage = on_cpu  # type: ignore[attr-defined]  # keeps the memory alive
    return memoryview(memory).cast("B")


@functools.lru_cache(maxsize=128)
def _bytes_of_size(size: int) -> type[ctypes.Array[ctypes.c_char]]:
    """Making the type takes ten times as long as using it, and the next save asks for the same."""
    return ctypes.c_char * size


class StorageSink(Protocol):
    """What the archive's writer offers to storages."""

    def write_storage(self, name: str, data: memoryview) -> None: ...

    def digest_of(self, name: str) -> str | None: ...


class StorageSaver:
    """Writes each storage once, and again if it changed between two saved objects.

    Args:
        sink: where the bytes go.

    Attributes:
        large: the keys of those that are so large that it matters what of them is used.
    """

    def __init__(self, sink: StorageSink) -> None:
        self.large: set[str] = set()
        self._sink = sink
        self._keys: dict[int, tuple[torch.UntypedStorage, str, int]] = {}
        self._count = 0
        self._generation = 0

    def next_object(self) -> None:
        """Start another saved object: storages seen before may have other contents by now."""
        self._generation += 1

    def add(self, storage: torch.UntypedStorage) -> str:
        """Write a storage if it is new, and return its key."""
        known = self._keys.get(storage._cdata)
        if known is not None and (known[2] == self._generation or self._unchanged(known)):
            self._keys[storage._cdata] = (storage, known[1], self._generation)
            return known[1]
        key = str(self._count)
        self._count += 1
        self._sink.write_storage(storage_record(key), storage_bytes(storage))
        size = storage.nbytes()
        from modpack.core.tensors import LARGE  # loading does without

        if size >= LARGE:
            self.large.add(key)
        advance(size)
        self._keys[storage._cdata] = (storage, key, self._generation)
        return key

    def key_of(self, storage: torch.UntypedStorage) -> str | None:
        """The key of a storage that was stored with the present object; None if it was not."""
        known = self._keys.get(storage._cdata)
        return known[1] if known is not None and known[2] == self._generation else None

    @property
    def generation(self) -> int:
        """How many objects were started by now."""
        return self._generation

    def put_back(self, since: int, read: Callable[[str], Iterable[bytes]]) -> None:
        """Give storages that have changed the content again with which they were written.

        Args:
            since: those that were written, or seen again, after so many objects.
            read: the content of a record, in chunks.
        """
        for storage, key, generation in self._keys.values():
            if generation > since:
                _overwrite(storage, read(storage_record(key)))

    def _unchanged(self, known: tuple[torch.UntypedStorage, str, int]) -> bool:
        storage, key, _ = known
        digest = self._sink.digest_of(storage_record(key))
        return not digest or digest == hashlib.sha256(storage_bytes(storage)).hexdigest()


def _overwrite(storage: torch.UntypedStorage, content: Iterable[bytes]) -> None:
    """Give a storage another content, and touch nothing that is as it should be already."""
    now, position, has_changed = storage_bytes(storage), 0, False
    for chunk in content:
        place = now[position : position + len(chunk)]
        position += len(chunk)
        if bytes(place) != chunk:  # far faster than comparing views
            place[:] = chunk
            has_changed = True
    if has_changed and storage.device.type != "cpu":
        owner: Any = now.obj
        storage.copy_(owner._storage)


class _Range(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def length(self) -> int: ...


class StorageSource(Protocol):
    """What an open archive offers to storages."""

    def has(self, name: str) -> bool: ...

    def read(self, name: str) -> bytes: ...

    def copied(self, name: str) -> bytearray: ...

    def data_range(self, name: str) -> _Range | None: ...

    def has_changed(self) -> bool: ...


class StorageLoader:
    """Loads the storages of one pickle; each load gets memory of its own, copy-on-write.

    Args:
        source: the open archive.
        map_location: where storages go, as :func:`torch.load` takes it.
        resource: the pickle being loaded, for errors.

    Raises:
        TypeError, ValueError: ``map_location`` is nothing that torch takes.
        UnpicklingError: the package records no order of bytes that there is.
    """

    def __init__(self, source: StorageSource, map_location: object, resource: str) -> None:
        self._source = source
        self._resource = resource
        self._restore = restoring(map_location)
        self._is_placed_by_package = map_location is None or isinstance(map_location, dict)
        self._loaded: dict[str, torch.UntypedStorage] = {}
        self._files: dict[str, torch.UntypedStorage | None] = {}
        self._swap = self._has_foreign_order()
        self._is_fake = wants_fakes()

    def load(self, storage_type: Any, key: Any, location: Any, size: Any) -> Any:
        """What a ``("storage", ...)`` persistent id stands for.

        Args:
            storage_type: the storage class that the pickle names.
            key: the storage's key.
            location: torch's location tag.
            size: its length, in elements of the storage class.

        Raises:
            UnpicklingError: they are not what they should be, or the storage is not there.
        """
        dtype = _dtype_of(storage_type)
        is_sound = isinstance(key, (str, int)) and isinstance(location, str)
        if dtype is None or not is_sound or not isinstance(size, int) or size < 0:
            raise self._failure(f"the storage {key!r} has an unknown type, place or size")
        storage = self.load_bytes(str(key), location, size, dtype)
        if storage_type is torch.UntypedStorage:
            return storage
        return torch.storage.TypedStorage(  # type: ignore[no-untyped-call]
            wrap_storage=storage, dtype=dtype, _internal=True
        )

    def load_bytes(
        self, key: str, location: str, size: int, dtype: torch.dtype
    ) -> torch.UntypedStorage:
        """A storage, the same each time.

        Args:
            key: its key.
            location: torch's location tag.
            size: how many elements it must have at least.
            dtype: of which type these are.

        Raises:
            UnpicklingError: it is not there, or too small.
        """
        storage = self._loaded.get(key)
        bytes_needed = size * dtype.itemsize
        if storage is None:
            record = storage_record(key)
            if not self._source.has(record):
                raise self._failure(f"its storage {record!r:.120} is not in the package")
            if self._is_fake:
                storage = fake_storage(bytes_needed, location)
            else:
                storage = self._placed(self._read(record, bytes_needed, dtype), record, location)
            self._loaded[key] = storage
        elif storage.nbytes() < bytes_needed and not self._is_fake:
            raise self._too_small(storage_record(key), storage.nbytes(), bytes_needed)
        return storage

    def _placed(
        self, storage: torch.UntypedStorage, record: str, location: str
    ) -> torch.UntypedStorage:
        """A storage where it belongs; a place that the caller has named is the caller's affair."""
        if not self._is_placed_by_package:
            return self._restore(storage, location)
        try:
            return self._restore(storage, location)
        except torch.cuda.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError) as failure:  # torch's, for what is no device here
            told = str(failure).encode("unicode_escape").decode()
            raise DeviceNotFoundError(
                self._resource,
                f"its storage {record!r:.120} cannot be put on {location!a:.80} ({told:.400}). "
                "Remedy: say with map_location where tensors go",
            ) from failure

    def _too_small(self, record: str, size: int, needed: int) -> UnpicklingError:
        return self._failure(
            f"its storage {record!r:.120} holds {size} bytes, but {needed} are needed"
        )

    def _read(self, record: str, size: int, dtype: torch.dtype) -> torch.UntypedStorage:
        storage = self._mapped(record)
        if storage is None:
            storage = _owning(self._source.copied(record))
        if storage.nbytes() < size:
            raise self._too_small(record, storage.nbytes(), size)
        if self._swap and dtype.itemsize > 1:
            storage = storage.clone()  # type: ignore[no-untyped-call]
            storage.byteswap(dtype)
        return storage

    def _mapped(self, record: str) -> torch.UntypedStorage | None:
        """A record's bytes, mapped; None if they have to be read."""
        place = self._source.data_range(record)
        if place is None or place.offset % _ALIGNMENT:
            return None
        if place.length == 0:
            return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
        if place.path not in self._files:
            self._files[place.path] = self._file(place.path)
        file = self._files[place.path]
        end = place.offset + place.length
        if file is None or file.nbytes() < end:
            return None
        return cast(torch.UntypedStorage, file[place.offset : end])

    def _file(self, path: str) -> torch.UntypedStorage | None:
        """A whole file, mapped by its path; None if that no longer leads to what was opened."""
        try:
            file = _map_file(path)
        except (OSError, RuntimeError) as failure:  # torch's own for what the system refuses
            if self._source.has_changed():
                return None
            raise self._failure(f"{path} cannot be mapped: {failure}") from failure
        return None if self._source.has_changed() else file

    def _has_foreign_order(self) -> bool:
        if not self._source.has(_BYTEORDER):
            return False
        recorded = self._source.read(_BYTEORDER).decode("ascii", "replace").strip()
        if recorded not in ("little", "big"):
            raise self._failure(f"its byte order is {recorded!r:.40}, neither little nor big")
        return recorded != sys.byteorder

    def _failure(self, reason: str) -> UnpicklingError:
        return UnpicklingError(self._resource, reason)


_BYTEORDER = "byteorder"
"""The record with the order of bytes in storages; where it is missing, it is the reader's."""

_ALIGNMENT = 16
"""Bytes: the widest element, and what compilers assume of vectors. Others are copied."""


def _dtype_of(storage_type: Any) -> torch.dtype | None:
    """The element type of a storage class; its own ``dtype`` warns of deprecation."""
    if storage_type is torch.UntypedStorage:
        return torch.uint8
    dtypes = torch.storage._get_dtype_from_pickle_storage_type
    try:
        return dtypes(storage_type.__name__)  # type: ignore[no-any-return]
    except (AttributeError, KeyError):
        return None


def _map_file(path: str) -> torch.UntypedStorage:
    size = os.stat(path).st_size
    file = torch.UntypedStorage.from_file(path, shared=False, nbytes=size)
    return cast(torch.UntypedStorage, file)


def _owning(data: bytearray) -> torch.UntypedStorage:
    if not data:
        return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
    return torch.frombuffer(data, dtype=torch.uint8).untyped_storage()
