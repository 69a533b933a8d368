"""Tensors of a package as they are loaded: their storages mapped, and tensors made on these.

torch trusts a pickle: its functions that make tensors make a storage larger that is too small,
divide by what they are given, and do not look whether parts lie inside. The ones here look first.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch

from modpack.errors import DeviceNotFoundError, ModpackError, UnpicklingError
from modpack.pickling.rebuild import named_in_packages

_BYTEORDER = "byteorder"
"""The record with the order of bytes in storages; where it is missing, it is the reader's."""
_ALIGNMENT = 16
"""Bytes: the widest element, and what compilers assume of vectors. Others are copied."""
PACKED = (torch.quint4x2, torch.quint2x4)
"""Element types of which several make a byte."""
_OF_TORCH = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What torch raises for arguments that no tensor can be made of."""
_OF_BLOCKS = (torch.sparse_bsr, torch.sparse_bsc)


class UnsoundTensorError(ModpackError):
    """A pickle describes a tensor that cannot be: its storage ends before it does, for instance."""


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
        return storage if storage_type is torch.UntypedStorage else _typed(storage, dtype)

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
            data = self._source.read_copy(record)
            if data:
                storage = torch.frombuffer(data, dtype=torch.uint8).untyped_storage()
            else:
                storage = torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
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
            size = os.stat(path).st_size
            file = torch.UntypedStorage.from_file(path, shared=False, nbytes=size)
        except (OSError, RuntimeError) as failure:  # torch's own for what the system refuses
            if self._source.has_changed():
                return None
            raise self._failure(f"{path} cannot be mapped: {failure}") from failure
        return None if self._source.has_changed() else cast(torch.UntypedStorage, file)

    def _has_foreign_order(self) -> bool:
        if not self._source.has(_BYTEORDER):
            return False
        recorded = self._source.read(_BYTEORDER).decode("ascii", "replace").strip()
        if recorded not in ("little", "big"):
            raise self._failure(f"its byte order is {recorded!r:.40}, neither little nor big")
        return recorded != sys.byteorder

    def _failure(self, reason: str) -> UnpicklingError:
        return UnpicklingError(self._resource, reason)


def _dtype_of(storage_type: Any) -> torch.dtype | None:
    """The element type of a storage class; its own ``dtype`` warns of deprecation."""
    if storage_type is torch.UntypedStorage:
        return torch.uint8
    dtypes = torch.storage._get_dtype_from_pickle_storage_type
    try:
        return dtypes(storage_type.__name__)  # type: ignore[no-any-return]
    except (AttributeError, KeyError):
        return None


def rebuilding(is_fake: bool) -> Callable[[Any], Any]:
    """What to call in place of what a pickle names.

    Args:
        is_fake: whether a FakeTensorMode is on.
    """
    pairs = _OURS_OF_FAKES if is_fake else _OURS

    def ours(named: Any) -> Any:
        return next((own for theirs, own in pairs if named is theirs), named)

    return ours


def _retyped(function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """A tensor of a class; a leaf stays one.

    torch's own function makes a view, which is computed if what it shows needs gradients.
    """
    made = function(*arguments)
    is_leaf = type(made) is torch.Tensor and made.requires_grad and made.is_leaf
    if is_leaf and kind is not torch.Tensor:
        made = _MAKE_SUBCLASS(kind, made, True)
    return torch._tensor._rebuild_from_type_v2(lambda: made, kind, (), state)  # type: ignore[no-untyped-call]


def _retyped_fake(function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """What torch.load makes of a parameter; a fake tensor cannot be of another class, or lazy."""
    is_lazy = issubclass(kind, torch.nn.UninitializedParameter)
    if function == _MAKE_SUBCLASS and issubclass(kind, torch.nn.Parameter) and not is_lazy:
        _, data, requires_grad = arguments
        parts = (data, requires_grad, OrderedDict[int, Any](), state)
        return torch._utils._rebuild_parameter_with_state(*parts)  # type: ignore[no-untyped-call]
    return torch._tensor._rebuild_from_type_v2(function, kind, arguments, state)  # type: ignore[no-untyped-call]


@named_in_packages
def freed_tensor(
    storage: Any,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: bool,
    hooks: Any,
    dtype: torch.dtype,
    metadata: Any = None,
) -> torch.Tensor:
    """A tensor whose memory was freed when it was saved, and still is: pickles name this function.

    torch looks at no address before it reads or writes there. So whoever restricts what pickles may
    name has to allow this one.
    """
    typed = _typed(storage)
    memory = typed._untyped_storage
    if memory.nbytes():
        raise UnsoundTensorError(
            f"a tensor should have no memory, but its storage has {memory.nbytes()} bytes"
        )
    arguments = (typed, offset, shape, strides, False, hooks, dtype, metadata)
    tensor = sound(torch._utils._rebuild_tensor_v3, *arguments)
    memory.resize_(0)
    tensor.requires_grad = requires_grad
    return tensor  # type: ignore[no-any-return]


def _typed(storage: Any, dtype: torch.dtype = torch.uint8) -> Any:
    """A storage as torch's functions take it: they look for the untyped one inside."""
    if not isinstance(storage, torch.UntypedStorage):
        return storage
    return torch.storage.TypedStorage(  # type: ignore[no-untyped-call]
        wrap_storage=storage, dtype=dtype, _internal=True
    )


def sound(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of torch's; what it raises tells what a pickle has wrong."""
    try:
        return function(*arguments)
    except ModpackError:
        raise
    except _OF_TORCH as failure:
        raise _unsound(failure) from failure


def _unsound(failure: Exception) -> UnsoundTensorError:
    told = f"{type(failure).__name__}: {failure}".encode("unicode_escape").decode()
    return UnsoundTensorError(f"the tensor that it describes cannot be made ({told:.400})")


def _require_room(
    storage: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Refuse what torch would make a storage larger for, with whatever lies in memory there."""
    from modpack.core.tensors import StorageView  # mapped storages, as most are, need no check

    size = storage._untyped_storage.nbytes()
    needed = StorageView(offset, tuple(shape), tuple(strides), dtype.itemsize).reach[1]
    if needed <= size or 0 in shape:
        return
    freed = "" if size else ". Remedy: if it was freed before it was saved, export it again"
    raise UnsoundTensorError(f"a tensor needs {needed} bytes, but its storage has {size}{freed}")


def _rebuild_of_untyped(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, *more: Any
) -> torch.Tensor:
    """As torch's own function, which looks for the storage inside of the one that it is given."""
    typed = _typed(storage)
    _require_room(typed, offset, shape, strides, more[0])
    arguments = (typed, offset, shape, strides, grad, hooks, *more)
    return torch._utils._rebuild_tensor_v3(*arguments)  # type: ignore[no-any-return, no-untyped-call]


def _rebuild_quantized(
    storage: Any, offset: Any, shape: Any, strides: Any, *more: Any
) -> torch.Tensor:
    """As torch's own function, which takes the memory before it looks at the storage."""
    if storage.dtype not in PACKED:
        _require_room(storage, offset, shape, strides, storage.dtype)
    arguments = (storage, offset, shape, strides, *more)
    return torch._utils._rebuild_qtensor(*arguments)  # type: ignore[no-any-return, no-untyped-call]


def _rebuild_old(storage: Any, offset: Any, shape: Any, strides: Any) -> torch.Tensor:
    """A tensor as pickles of torch 0.3 describe it."""
    return _rebuild_tensor(storage, offset, shape, strides, False, OrderedDict())


def _sparse_in_place(layout: torch.layout, data: tuple[Any, ...]) -> torch.Tensor:
    """As torch's own function, but left alone by a ``torch.device`` context.

    The context is for new tensors. A sparse one would follow it without its values, while the
    dense ones stay where they were saved.
    """
    with data[0].device:
        return torch._utils._rebuild_sparse_tensor(layout, data)  # type: ignore[no-any-return, no-untyped-call]


def _rebuild_sparse(layout: Any, data: Any) -> torch.Tensor:
    """As torch's own function, and with indices that lie inside; torch does not look at them.

    It can be told to look at all that were loaded, but lists them for all threads together. That
    list is left as it was.
    """
    made = _sparse_in_place(layout, data)
    listed = torch._utils._sparse_tensors_to_validate
    listed[:] = [each for each in listed if each is not made]
    if made.is_meta:
        return made
    if layout is torch.sparse_coo:
        parts = (made._indices(), made._values(), made.size(), made.is_coalesced())
        torch._validate_sparse_coo_tensor_args(*parts, **_unpinned())
        return made
    by_rows = layout in (torch.sparse_csr, torch.sparse_bsr)
    compressed = made.crow_indices() if by_rows else made.ccol_indices()
    plain = made.col_indices() if by_rows else made.row_indices()
    first = compressed.dim()  # of the values' dimensions that blocks have
    if made.layout in _OF_BLOCKS and 0 in made.values().shape[first : first + 2]:
        raise UnsoundTensorError("a sparse tensor has blocks of no elements")  # torch divides by it
    compressed_parts = (compressed, plain, made.values(), made.size(), made.layout)
    torch._validate_sparse_compressed_tensor_args(*compressed_parts, **_unpinned())
    return made


def _rebuild_nested(buffer: Any, sizes: Any, strides: Any, offsets: Any) -> torch.Tensor:
    """As torch's own function, which does not look whether its parts lie inside of the buffer."""
    from modpack.core.tensors import StorageView

    count = buffer.numel()
    is_row = buffer.dim() == 1 and buffer.is_contiguous()
    if not is_row or sizes.shape != strides.shape or len(offsets) != len(sizes):
        raise UnsoundTensorError("a nested tensor has parts of different number")
    for shape, steps, offset in zip(
        sizes.tolist(), strides.tolist(), offsets.tolist(), strict=True
    ):
        reach = StorageView(offset, tuple(shape), tuple(steps), 1).reach
        if 0 not in shape and not (reach[0] >= 0 and reach[1] <= count):
            raise UnsoundTensorError(f"a nested tensor needs {reach[1]} elements of {count}")
    parts = (buffer, sizes, strides, offsets)
    return torch._utils._rebuild_nested_tensor(*parts)  # type: ignore[no-any-return, no-untyped-call]


@functools.cache
def _unpinned() -> dict[str, Any]:
    """That it does not matter where the parts lie; older versions of torch do not ask."""
    schema = torch.ops.aten._validate_sparse_coo_tensor_args.default._schema
    return {"check_pinning": False} if "check_pinning" in str(schema) else {}


def _rebuild_tensor(
    storage: Any,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: bool,
    hooks: Any,
    metadata: Any = None,
) -> torch.Tensor:
    """A tensor on a storage, when no FakeTensorMode is on.

    torch's own function looks for one again and again, which takes as long as all the rest. It
    makes a storage larger that is too small; of one that is mapped, torch itself says that it is.
    """
    try:
        memory = storage._untyped_storage
        if memory.resizable():
            _require_room(storage, offset, shape, strides, storage.dtype)
        tensor: Any = torch.empty((0,), dtype=storage.dtype, device=memory.device)
        tensor.set_(memory, offset, shape, strides)
        tensor.requires_grad = requires_grad
        if metadata:
            torch._utils.set_tensor_metadata(tensor, metadata)  # type: ignore[no-untyped-call]
        tensor._backward_hooks = hooks
    except _OF_TORCH as failure:
        if isinstance(storage, torch.storage.TypedStorage):
            sound(_require_room, storage, offset, shape, strides, storage.dtype)
        raise _unsound(failure) from failure
    return tensor  # type: ignore[no-any-return]


_MAKE_SUBCLASS = torch.Tensor._make_subclass
_SPARSE = torch._utils._rebuild_sparse_tensor
_OLD = torch._utils._rebuild_tensor
_UNTYPED = (torch._utils._rebuild_tensor_v3, functools.partial(sound, _rebuild_of_untyped))
_OURS = (
    (torch._utils._rebuild_tensor_v2, _rebuild_tensor),
    (torch._tensor._rebuild_from_type_v2, _retyped),
    _UNTYPED,
    (_SPARSE, functools.partial(sound, _rebuild_sparse)),
    (torch._utils._rebuild_qtensor, functools.partial(sound, _rebuild_quantized)),
    (torch._utils._rebuild_nested_tensor, functools.partial(sound, _rebuild_nested)),
    (_OLD, _rebuild_old),
)
_OURS_OF_FAKES = (
    (torch._tensor._rebuild_from_type_v2, _retyped_fake),
    _UNTYPED,
    (_SPARSE, _sparse_in_place),
)
