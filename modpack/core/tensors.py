"""Named tensors of saved objects, and the parts of storages that they use, without torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from itertools import chain
from math import prod
from typing import Final, NamedTuple

from modpack.core.codec import from_json, json_keys, record_to_json
from modpack.core.json_values import Json

TENSORS_VERSION: Final = 1
"""Increase it if readers of the old version would misread the new format."""

ITEM_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("bool", "uint8", "int8", "quint8", "qint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("bits8", "bits1x8", "bits2x4", "bits4x2", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys((f"{sign}{bits}" for sign in ("int", "uint") for bits in range(1, 8)), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16", "bits16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32", "complex32", "qint32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}
"""Bytes per element of known dtypes, by torch's name."""

DTYPE_ALIASES: Final = frozenset(
    ("half", "float", "double", "chalf", "cfloat", "cdouble", "short", "int", "long", "bit")
)
"""torch's aliases of dtypes; packages contain the canonical names."""

PACKED_DTYPES: Final[Mapping[str, int]] = {"quint4x2": 2, "quint2x4": 4}
"""Elements per byte, for dtypes with several."""

QUANTIZED_DTYPES: Final = frozenset(("quint8", "qint8", "qint32", *PACKED_DTYPES))
"""Dtypes whose values require a scale and a zero point."""

MAX_DIMENSIONS: Final = 64
_SIZE_LIMIT: Final = 2**63
_USUAL: Final[Mapping[str, object]] = {"persistent": True, "device": "cpu", "form": ""}


class TensorKind(str, Enum):
    """The role of a tensor in the object that contains it."""

    PARAMETER = "parameter"
    """A parameter of a module."""
    BUFFER = "buffer"
    """A buffer of a module."""
    STATE = "state"
    """Optimizer state of a parameter."""
    VALUE = "value"
    """A tensor in a container or an attribute."""


@json_keys(
    {"is_persistent": "persistent"},
    optional=("is_persistent", "device", "storage", "offset", "stride", "form"),
)
class TensorFacts(NamedTuple):
    """One tensor of a saved object, under one of its names.

    Attributes:
        name: Its path, as in a state dict (``layer1.0.weight``). A tensor with several names is
            listed under each.
        kind: Its role.
        dtype: torch's name for its element type (``float32``).
        shape: Its shape; None for a lazy parameter, which has none yet, and for a nested tensor.
        requires_grad: Whether it requires gradients.
        is_persistent: For a buffer, whether it is in the state dict.
        device: Its device when it was saved.
        storage: The key of the storage with its elements; None if no record contains them
            directly.
        offset: Elements of that storage before its first one.
        stride: The distance in elements between neighbors, by dimension.
        form: How to interpret its elements beyond storage, dtype, shape, and stride:
            ``quantized``, ``conjugated``, ``negated``, ``subclass``; without a storage ``sparse``,
            ``nested``, ``lazy``, ``meta``, ``wrapper``, ``freed``. Usually empty.
    """

    name: str
    kind: TensorKind
    dtype: str
    shape: tuple[int, ...] | None = None
    requires_grad: bool = False
    is_persistent: bool = True
    device: str = "cpu"
    storage: str | None = None
    offset: int = 0
    stride: tuple[int, ...] = ()
    form: str = ""

    @property
    def numel(self) -> int:
        """The number of elements."""
        return 0 if self.shape is None else prod(self.shape)

    @property
    def size_bytes(self) -> int | None:
        """Bytes of its elements; None if its dtype or shape is unknown."""
        item = ITEM_BYTES.get(self.dtype)
        return None if item is None or self.shape is None else item * self.numel

    @property
    def is_contiguous(self) -> bool:
        """Whether its stride follows from its shape. Strides of dimensions of size 1 are free."""
        expected = 1
        for size, step in zip(reversed(self.shape or ()), reversed(self.stride), strict=True):
            if size != 1 and step != expected:
                return False
            expected *= size
        return True

    @property
    def span(self) -> int:
        """Elements of the storage from its first to its last one; 0 without a storage."""
        if self.numel == 0 or self.storage is None:
            return 0
        steps = zip(self.shape or (), self.stride, strict=True)
        return 1 + sum((size - 1) * step for size, step in steps)


def tensors_to_json(tensors: Mapping[str, Sequence[TensorFacts]]) -> dict[str, Json]:
    """Return the record of a package: the tensors of each saved object, by its record."""
    resources: dict[str, Json] = {
        record: [_tensor_to_json(tensor) for tensor in listed] for record, listed in tensors.items()
    }
    return {"version": TENSORS_VERSION, "resources": resources}


def _tensor_to_json(tensor: TensorFacts) -> Json:
    """Return a tensor's JSON without usual values."""
    # A model may have tens of thousands of tensors, and most of them have the usual values.
    entry = record_to_json(tensor)
    unset = ("storage", "offset", "stride") if tensor.storage is None else ()
    return {key: v for key, v in entry.items() if key not in unset and _USUAL.get(key, ...) != v}


def tensors_from_json(record: Mapping[str, Json]) -> dict[str, tuple[TensorFacts, ...]]:
    """Parse the output of :func:`tensors_to_json`.

    Raises:
        KeyError: If a field is missing.
        TypeError: If a field has another type.
        ValueError: If a tensor's shape, stride, or size is invalid.
    """
    kinds = dict[str, tuple[TensorFacts, ...]]
    resources = from_json(kinds, record["resources"], "'resources' of the record")
    for tensor in chain.from_iterable(resources.values()):
        _check(tensor)
    return resources


def _check(tensor: TensorFacts) -> None:
    sizes = (*(tensor.shape or ()), *tensor.stride, tensor.offset)
    dimensions = max(len(tensor.shape or ()), len(tensor.stride))
    # First, because the products below would take long for millions of dimensions.
    if dimensions > MAX_DIMENSIONS:
        raise ValueError(
            f"{tensor.name!r} has {dimensions} dimensions, and the limit is {MAX_DIMENSIONS}"
        )
    is_stored = tensor.storage is not None
    if is_stored and (tensor.shape is None or len(tensor.shape) != len(tensor.stride)):
        raise ValueError(f"the shape and stride of {tensor.name!r} differ in length")
    total = tensor.offset + tensor.span
    # torch computes with 64-bit integers, which would overflow.
    if max(sizes) >= _SIZE_LIMIT or tensor.numel >= _SIZE_LIMIT or total >= _SIZE_LIMIT:
        raise ValueError(f"{tensor.name!r} is larger than any machine's memory")


LARGE: Final = 1_000_000
"""Bytes of a storage from which unused parts are reported."""


class StorageView(NamedTuple):
    """The elements of a storage that a tensor uses.

    Attributes:
        offset: Elements of the storage before its first one.
        shape: Its shape.
        stride: The distance in elements between neighbors, by dimension.
        item_bytes: Bytes per element.
    """

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    item_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements, counting repeated elements once.

        >>> StorageView(0, (5, 3), (0, 1), 4).size_bytes
        12
        """
        steps = zip(self.shape, self.stride, strict=True)
        return self.item_bytes * prod(size if step or not size else 1 for size, step in steps)

    @property
    def reach(self) -> tuple[int, int]:
        """The byte range of the storage from its first to its last element.

        >>> StorageView(10, (2, 2), (100, 1), 4).reach
        (40, 448)
        """
        start = self.offset * self.item_bytes
        if 0 in self.shape:
            return start, start
        steps = zip(self.shape, self.stride, strict=True)
        return start, start + self.item_bytes * (1 + sum((n - 1) * step for n, step in steps))


def bytes_used(views: Collection[StorageView]) -> int:
    """Return the number of bytes of a storage that views use together. It is an upper bound.

    Two columns of a matrix span nearly all of it, but use only two columns. Two views of the same
    rows use them once.

    >>> columns = [StorageView(at, (1000,), (100,), 1) for at in (0, 1)]
    >>> rows = [StorageView(0, (10, 100), (100, 1), 1)] * 2
    >>> bytes_used(columns), bytes_used(rows)
    (2000, 1000)
    """
    # Both are upper bounds: the sum counts overlaps twice, and the ranges include gaps.
    distinct = set(views)
    return min(sum(view.size_bytes for view in distinct), _length(v.reach for v in distinct))


def is_underused(size: int, used: int) -> bool:
    """Return whether a storage is much larger than its used part.

    Args:
        size: The storage's size in bytes.
        used: The number of used bytes.

    >>> is_underused(4_000_000, 12), is_underused(4_000_000, 2_000_000)
    (True, False)
    >>> is_underused(4_000, 12)
    False
    """
    return size - used >= LARGE and 2 * used < size


def _length(ranges: Iterable[tuple[int, int]]) -> int:
    """Return the total length of the union of ranges."""
    covered = until = 0
    # Sorted by their starts, each range can only add what is beyond the end of all before it.
    for start, end in sorted(ranges):
        covered += max(0, end - max(start, until))
        until = max(until, end)
    return covered
