"""Loading of tensors: maps their storages, and rebuilds tensors on them with bounds checks.

torch trusts pickles: its rebuild functions enlarge storages that are too small, divide by numbers
from the pickle, and do not check bounds. The functions in this module check first.
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
"""The record with the byte order of storages. Without it, they have the reader's order."""
_ALIGNMENT = 16
"""Bytes: the widest element type, and what compilers assume for vectors. Others are copied."""
PACKED = (torch.quint4x2, torch.quint2x4)
"""Dtypes with several elements per byte."""
_TORCH_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Exceptions that torch raises for arguments that describe no valid tensor."""
_BLOCK_LAYOUTS = (torch.sparse_bsr, torch.sparse_bsc)


class UnsoundTensorError(ModpackError):
    """A pickle describes an impossible tensor, such as one that is larger than its storage."""

    def __init__(self, reason: str, *, hint: str = "") -> None:
        self.reason = reason
        super().__init__(reason, hint=hint)


def restore_function(
    map_location: object,
) -> Callable[[torch.UntypedStorage, str], torch.UntypedStorage]:
    """Return the function by which torch.load moves storages, after checking ``map_location``.

    Raises:
        TypeError: If torch does not accept this type.
        ValueError: If the string does not name a device.
    """
    known = (str, torch.device, dict)
    if not (map_location is None or isinstance(map_location, known) or callable(map_location)):
        raise TypeError(
            "map_location must be None, a device, a dict of devices, or a function, "
            f"not {type(map_location).__name__}"
        )
    # torch would report a string that is not a device only when it moves the first storage.
    if isinstance(map_location, str):
        try:
            torch.device(map_location)
        except RuntimeError as failure:
            raise ValueError(
                f"map_location {map_location!r} is not a device: {failure}"
            ) from failure
    restore = torch.serialization._get_restore_location(map_location)  # type: ignore[no-untyped-call]
    return restore  # type: ignore[no-any-return]


@contextmanager
def map_location_scope(map_location: object) -> Iterator[None]:
    """Set torch's ``map_location`` for tensors without storages while objects are loaded.

    torch's functions that rebuild such tensors, such as wrapper subclasses, read it themselves.

    Args:
        map_location: The value that the storage loader has.
    """
    state: Any = torch.serialization._serialization_tls
    before, state.map_location = state.map_location, map_location
    try:
        yield
    finally:
        state.map_location = before


def is_fake_mode() -> bool:
    """Return whether a FakeTensorMode is active, in which tensors have no content."""
    return torch._guards.detect_fake_mode(None) is not None


def fake_storage(size: int, location: str) -> torch.UntypedStorage:
    """Return a storage as torch.load creates it in a FakeTensorMode.

    Args:
        size: Its size in bytes.
        location: torch's location tag.
    """
    storage: Any = torch.UntypedStorage(size, device="meta")  # type: ignore[no-untyped-call]
    storage._fake_device = location
    return storage  # type: ignore[no-any-return]


def storage_record(key: str) -> str:
    """Return the name of a storage's record."""
    return f".data/{key}.storage"


class _Range(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def length(self) -> int: ...


class StorageSource(Protocol):
    """The methods of an open archive that loading storages requires."""

    def has(self, name: str) -> bool: ...

    def read(self, name: str) -> bytes: ...

    def read_copy(self, name: str) -> bytearray: ...

    def data_range(self, name: str) -> _Range | None: ...

    def has_changed(self) -> bool: ...


class StorageLoader:
    """Loads the storages of one pickle; each load gets its own copy-on-write memory.

    Args:
        source: The open archive.
        map_location: The target device of storages, as in :func:`torch.load`.
        resource: The pickle being loaded, for errors.

    Raises:
        TypeError: If torch does not accept this type of ``map_location``.
        ValueError: If ``map_location`` does not name a device.
        UnpicklingError: If the package records an unknown byte order.
    """

    def __init__(self, source: StorageSource, map_location: object, resource: str) -> None:
        self._source = source
        self._resource = resource
        self._restore = restore_function(map_location)
        self._is_placed_by_package = map_location is None or isinstance(map_location, dict)
        self._loaded: dict[str, torch.UntypedStorage] = {}
        self._files: dict[str, torch.UntypedStorage | None] = {}
        self._swap = self._has_foreign_order()
        self._is_fake = is_fake_mode()

    def load(self, storage_type: Any, key: Any, location: Any, size: Any) -> Any:
        """Load the storage of a ``("storage", ...)`` persistent id.

        Args:
            storage_type: The storage class that the pickle names.
            key: The storage's key.
            location: torch's location tag.
            size: Its length, in elements of the storage class.

        Raises:
            UnpicklingError: If an argument is invalid, or the storage is missing.
        """
        dtype = _dtype_of(storage_type)
        is_sound = isinstance(key, (str, int)) and isinstance(location, str)
        if dtype is None or not is_sound or not isinstance(size, int) or size < 0:
            raise self._failure(f"storage {key!r} has an invalid type, location, or size")
        storage = self.load_bytes(str(key), location, size, dtype)
        return storage if storage_type is torch.UntypedStorage else _typed(storage, dtype)

    def load_bytes(
        self, key: str, location: str, size: int, dtype: torch.dtype
    ) -> torch.UntypedStorage:
        """Load a storage; repeated calls return the same one.

        Args:
            key: Its key.
            location: torch's location tag.
            size: The minimum number of elements.
            dtype: The type of these elements.

        Raises:
            UnpicklingError: If it is missing or too small.
        """
        storage = self._loaded.get(key)
        bytes_needed = size * dtype.itemsize
        if storage is None:
            record = storage_record(key)
            if not self._source.has(record):
                raise self._failure(f"storage {record!r:.120} is not in the package")
            if self._is_fake:
                storage = fake_storage(bytes_needed, location)
            else:
                storage = self._placed(self._read(record, bytes_needed, dtype), record, location)
            self._loaded[key] = storage
        # Each persistent ID states a size of its own for the same storage.
        elif storage.nbytes() < bytes_needed and not self._is_fake:
            raise self._too_small(storage_record(key), storage.nbytes(), bytes_needed)
        return storage

    def _placed(
        self, storage: torch.UntypedStorage, record: str, location: str
    ) -> torch.UntypedStorage:
        """Move a storage to its device; errors from the caller's own function are not wrapped."""
        if not self._is_placed_by_package:
            return self._restore(storage, location)
        try:
            return self._restore(storage, location)
        except torch.cuda.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError) as failure:  # raised by torch for unavailable devices
            reason = str(failure).encode("unicode_escape").decode()
            raise DeviceNotFoundError(
                self._resource,
                f"storage {record!r:.120} cannot be moved to {location!a:.80} ({reason:.400})",
                hint="Choose an available device with map_location.",
            ) from failure

    def _too_small(self, record: str, size: int, needed: int) -> UnpicklingError:
        return self._failure(f"storage {record!r:.120} has {size} bytes, but {needed} are required")

    def _read(self, record: str, size: int, dtype: torch.dtype) -> torch.UntypedStorage:
        storage = self._mapped(record)
        if storage is None:
            data = self._source.read_copy(record)
            # `frombuffer` rejects an empty buffer.
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
        """Map a record's bytes; return None if they must be read instead."""
        extent = self._source.data_range(record)
        if extent is None or extent.offset % _ALIGNMENT:
            return None
        if extent.length == 0:
            return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
        if extent.path not in self._files:
            self._files[extent.path] = self._file(extent.path)
        file = self._files[extent.path]
        end = extent.offset + extent.length
        if file is None or file.nbytes() < end:
            return None
        return cast(torch.UntypedStorage, file[extent.offset : end])

    def _file(self, path: str) -> torch.UntypedStorage | None:
        """Map a whole file by its path; return None if the path now leads to another file."""
        try:
            size = os.stat(path).st_size
            file = torch.UntypedStorage.from_file(path, shared=False, nbytes=size)
        except (OSError, RuntimeError) as failure:  # RuntimeError: torch's for system errors
            if self._source.has_changed():
                return None
            raise self._failure(f"{path} cannot be mapped: {failure}") from failure
        return None if self._source.has_changed() else cast(torch.UntypedStorage, file)

    def _has_foreign_order(self) -> bool:
        if not self._source.has(_BYTEORDER):
            return False
        recorded = self._source.read(_BYTEORDER).decode("ascii", "replace").strip()
        if recorded not in ("little", "big"):
            raise self._failure(f"byte order {recorded!r:.40} is neither 'little' nor 'big'")
        return recorded != sys.byteorder

    def _failure(self, reason: str) -> UnpicklingError:
        return UnpicklingError(self._resource, reason)


def _dtype_of(storage_type: Any) -> torch.dtype | None:
    """Return the dtype of a storage class; its own ``dtype`` warns of deprecation."""
    if storage_type is torch.UntypedStorage:
        return torch.uint8
    dtypes = torch.storage._get_dtype_from_pickle_storage_type
    try:
        return dtypes(storage_type.__name__)  # type: ignore[no-any-return]
    except (AttributeError, KeyError):
        return None


def checked_functions(is_fake: bool) -> Callable[[Any], Any]:
    """Return a lookup of the replacement for a function or class that a pickle names.

    Args:
        is_fake: Whether a FakeTensorMode is active.
    """
    pairs = _FAKE_REPLACEMENTS if is_fake else _REPLACEMENTS

    def replace(named: Any) -> Any:
        return next((own for theirs, own in pairs if named is theirs), named)

    return replace


def _retyped(function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """Rebuild a tensor of a subclass, keeping leaves.

    torch's own function creates a view, which is not a leaf if the viewed tensor requires
    gradients.
    """
    made = function(*arguments)
    is_leaf = type(made) is torch.Tensor and made.requires_grad and made.is_leaf
    if is_leaf and kind is not torch.Tensor:
        made = _MAKE_SUBCLASS(kind, made, True)
    return torch._tensor._rebuild_from_type_v2(lambda: made, kind, (), state)  # type: ignore[no-untyped-call]


def _retyped_fake(function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """Rebuild a parameter as torch.load does; a fake tensor cannot be lazy or have a subclass."""
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
    """Rebuild a tensor whose memory was freed before it was saved. Pickles name this function.

    torch does not check such a tensor's storage before it reads or writes. A policy that restricts
    the names in pickles must therefore allow this function by name.
    """
    typed = _typed(storage)
    memory = typed._untyped_storage
    if memory.nbytes():
        raise UnsoundTensorError(
            f"a tensor should have no memory, but its storage has {memory.nbytes()} bytes"
        )
    arguments = (typed, offset, shape, strides, False, hooks, dtype, metadata)
    tensor = call_checked(torch._utils._rebuild_tensor_v3, *arguments)
    # torch has enlarged the storage for the tensor.
    memory.resize_(0)
    tensor.requires_grad = requires_grad
    return tensor  # type: ignore[no-any-return]


def _typed(storage: Any, dtype: torch.dtype = torch.uint8) -> Any:
    """Return a typed storage, which torch's functions unwrap."""
    if not isinstance(storage, torch.UntypedStorage):
        return storage
    return torch.storage.TypedStorage(  # type: ignore[no-untyped-call]
        wrap_storage=storage, dtype=dtype, _internal=True
    )


def call_checked(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a torch function; raise :class:`UnsoundTensorError` for invalid arguments."""
    try:
        return function(*arguments)
    except ModpackError:
        raise
    except _TORCH_ERRORS as failure:
        raise _unsound(failure) from failure


def _unsound(failure: Exception) -> UnsoundTensorError:
    reason = f"{type(failure).__name__}: {failure}".encode("unicode_escape").decode()
    return UnsoundTensorError(f"torch cannot create a tensor of the pickle ({reason:.400})")


def _require_room(
    storage: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Reject a tensor beyond its storage: torch would enlarge the storage with stale memory."""
    from modpack.core.tensors import StorageView  # mapped storages, as most are, need no check

    size = storage._untyped_storage.nbytes()
    needed = StorageView(offset, tuple(shape), tuple(strides), dtype.itemsize).reach[1]
    if needed <= size or 0 in shape:
        return
    hint = (
        ""
        if size
        else "If the tensor's memory was freed before the export, export again with its values."
    )
    raise UnsoundTensorError(
        f"a tensor requires {needed} bytes, but its storage has {size}", hint=hint
    )


def _rebuild_of_untyped(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, *more: Any
) -> torch.Tensor:
    """Rebuild like torch's own function, which expects a typed storage."""
    typed = _typed(storage)
    _require_room(typed, offset, shape, strides, more[0])
    arguments = (typed, offset, shape, strides, grad, hooks, *more)
    return torch._utils._rebuild_tensor_v3(*arguments)  # type: ignore[no-any-return, no-untyped-call]


def _rebuild_quantized(
    storage: Any, offset: Any, shape: Any, strides: Any, *more: Any
) -> torch.Tensor:
    """Rebuild like torch's own function, which accesses the memory before checking the storage.

    Some releases of torch (2.6) do not check the signs, either.
    """
    if min(offset, *shape, *strides, 0) < 0:
        raise UnsoundTensorError("a quantized tensor has a negative offset, size, or stride")
    if storage.dtype not in PACKED:
        _require_room(storage, offset, shape, strides, storage.dtype)
    arguments = (storage, offset, shape, strides, *more)
    return torch._utils._rebuild_qtensor(*arguments)  # type: ignore[no-any-return, no-untyped-call]


def _rebuild_old(storage: Any, offset: Any, shape: Any, strides: Any) -> torch.Tensor:
    """Rebuild a tensor as pickles of torch 0.3 describe it."""
    return _rebuild_tensor(storage, offset, shape, strides, False, OrderedDict())


def _sparse_in_place(layout: torch.layout, data: tuple[Any, ...]) -> torch.Tensor:
    """Rebuild like torch's own function, but ignore a ``torch.device`` context.

    The context applies to new tensors. A sparse tensor would follow it without its values, while
    dense ones stay on the device that they were saved on.
    """
    with data[0].device:
        return torch._utils._rebuild_sparse_tensor(layout, data)  # type: ignore[no-any-return, no-untyped-call]


def _rebuild_sparse(layout: Any, data: Any) -> torch.Tensor:
    """Rebuild like torch's own function, and check the indices, which torch does not.

    torch can validate all loaded sparse tensors, but collects them in one list for all threads.
    That list is left unchanged.
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
    first = compressed.dim()  # the first dimension of a block in the values
    if made.layout in _BLOCK_LAYOUTS and 0 in made.values().shape[first : first + 2]:
        raise UnsoundTensorError("a sparse tensor has empty blocks")  # torch divides by their size
    compressed_parts = (compressed, plain, made.values(), made.size(), made.layout)
    torch._validate_sparse_compressed_tensor_args(*compressed_parts, **_unpinned())
    return made


def _rebuild_nested(buffer: Any, sizes: Any, strides: Any, offsets: Any) -> torch.Tensor:
    """Rebuild like torch's own function, which does not check that its parts are in the buffer."""
    from modpack.core.tensors import StorageView

    count = buffer.numel()
    is_row = buffer.dim() == 1 and buffer.is_contiguous()
    if not is_row or sizes.shape != strides.shape or len(offsets) != len(sizes):
        raise UnsoundTensorError("the parts of a nested tensor differ in number")
    # In elements of the buffer, and not in bytes.
    for shape, steps, offset in zip(
        sizes.tolist(), strides.tolist(), offsets.tolist(), strict=True
    ):
        if min((*shape, *steps), default=0) < 0:  # the reach would be wrong
            raise UnsoundTensorError("a nested tensor has a negative size or stride")
        reach = StorageView(offset, tuple(shape), tuple(steps), 1).reach
        if 0 not in shape and not (reach[0] >= 0 and reach[1] <= count):
            raise UnsoundTensorError(
                f"a nested tensor requires {reach[1]} elements, but its buffer has {count}"
            )
    parts = (buffer, sizes, strides, offsets)
    return torch._utils._rebuild_nested_tensor(*parts)  # type: ignore[no-any-return, no-untyped-call]


@functools.cache
def _unpinned() -> dict[str, Any]:
    """Return arguments that skip the check for pinned memory; older versions have none."""
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
    """Rebuild a tensor outside of a FakeTensorMode.

    torch's own function searches for such a mode repeatedly, which doubles the time. It also
    enlarges a storage that is too small; for a mapped storage torch raises an error.
    """
    try:
        memory = storage._untyped_storage
        # torch enlarges these storages. For others, such as mapped ones, `set_` raises an error.
        if memory.resizable():
            _require_room(storage, offset, shape, strides, storage.dtype)
        tensor: Any = torch.empty((0,), dtype=storage.dtype, device=memory.device)
        tensor.set_(memory, offset, shape, strides)
        tensor.requires_grad = requires_grad
        if metadata:
            torch._utils.set_tensor_metadata(tensor, metadata)  # type: ignore[no-untyped-call]
        tensor._backward_hooks = hooks
    except _TORCH_ERRORS as failure:
        if isinstance(storage, torch.storage.TypedStorage):
            call_checked(_require_room, storage, offset, shape, strides, storage.dtype)
        raise _unsound(failure) from failure
    return tensor  # type: ignore[no-any-return]


_MAKE_SUBCLASS = torch.Tensor._make_subclass
_SPARSE = torch._utils._rebuild_sparse_tensor
_OLD = torch._utils._rebuild_tensor
_UNTYPED = (torch._utils._rebuild_tensor_v3, functools.partial(call_checked, _rebuild_of_untyped))
_REPLACEMENTS = (
    (torch._utils._rebuild_tensor_v2, _rebuild_tensor),
    (torch._tensor._rebuild_from_type_v2, _retyped),
    _UNTYPED,
    (_SPARSE, functools.partial(call_checked, _rebuild_sparse)),
    (torch._utils._rebuild_qtensor, functools.partial(call_checked, _rebuild_quantized)),
    (torch._utils._rebuild_nested_tensor, functools.partial(call_checked, _rebuild_nested)),
    (_OLD, _rebuild_old),
)
_FAKE_REPLACEMENTS = (
    (torch._tensor._rebuild_from_type_v2, _retyped_fake),
    _UNTYPED,
    (_SPARSE, _sparse_in_place),
)
