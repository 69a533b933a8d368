"""The named tensors of saved objects, and how much of a storage they use. Needs no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from itertools import chain
from math import prod
from typing import Final, NamedTuple

from modpack.core.codec import from_json, json_keys
from modpack.core.json_values import Json

TENSORS_VERSION: Final = 1
"""Raise it when a reader of the old version would misunderstand what is written."""

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
"""Bytes of one element, by torch's name for its type; of those that are known here."""

DTYPE_ALIASES: Final = frozenset(
    ("half", "float", "double", "chalf", "cfloat", "cdouble", "short", "int", "long", "bit")
)
"""Second names that torch has for element types; packages have the first."""

PACKED_DTYPES: Final[Mapping[str, int]] = {"quint4x2": 2, "quint2x4": 4}
"""How many elements make a byte, for the types of which several do."""

QUANTIZED_DTYPES: Final = frozenset(("quint8", "qint8", "qint32", *PACKED_DTYPES))
"""Element types whose numbers mean something only with a scale and a zero point."""

_MAX_DIMENSIONS: Final = 64
_MOST: Final = 2**63


class TensorKind(str, Enum):
    """What a tensor is to the object that holds it."""

    PARAMETER = "parameter"
    """A parameter of a module."""
    BUFFER = "buffer"
    """A buffer of a module."""
    STATE = "state"
    """What an optimizer keeps for a parameter."""
    VALUE = "value"
    """A tensor in a container or an attribute."""


@json_keys(
    {"is_persistent": "persistent"},
    optional=("is_persistent", "device", "storage", "offset", "stride", "form"),
)
class TensorFacts(NamedTuple):
    """One tensor of a saved object, under one of its names.

    Attributes:
        name: the path that leads to it, as a state dict has it (``layer1.0.weight``). A tensor
            with several names is listed under each.
        kind: what it is.
        dtype: its element type, as torch calls it (``float32``).
        shape: its sizes; None where it has none yet (a lazy parameter) or more than one.
        requires_grad: whether gradients are computed for it.
        is_persistent: for a buffer, whether it is in the state dict.
        device: where it was when it was saved.
        storage: the key of the storage that holds its elements; None if no record of the
            package does so plainly.
        offset: elements of that storage before its first one.
        stride: how many elements of the storage lie between neighbors, by dimension.
        form: how its elements are to be understood, where the storage, type, shape and stride do
            not say it all: ``quantized``, ``conjugated``, ``negated``, ``subclass``; without a
            storage ``sparse``, ``nested``, ``lazy``, ``meta``, ``wrapper``, ``freed``. Mostly
            empty.
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
        """How many elements it has."""
        return 0 if self.shape is None else prod(self.shape)

    @property
    def size_bytes(self) -> int | None:
        """Bytes of its elements; None if its type or its shape is not known."""
        item = ITEM_BYTES.get(self.dtype)
        return None if item is None or self.shape is None else item * self.numel

    @property
    def span(self) -> int:
        """Elements of the storage from its first one to its last one; 0 without a storage."""
        if self.numel == 0 or self.storage is None:
            return 0
        steps = zip(self.shape or (), self.stride, strict=True)
        return 1 + sum((size - 1) * step for size, step in steps)


def tensors_to_json(tensors: Mapping[str, Sequence[TensorFacts]]) -> dict[str, Json]:
    """What a package records: the tensors of each saved object, by the object's record."""
    resources: dict[str, Json] = {
        record: [_tensor(tensor) for tensor in of_one] for record, of_one in tensors.items()
    }
    return {"version": TENSORS_VERSION, "resources": resources}


def _tensor(tensor: TensorFacts) -> Json:
    """Return a tensor's JSON without what goes without saying."""
    entry: dict[str, Json] = {
        "name": tensor.name,
        "kind": tensor.kind.value,
        "dtype": tensor.dtype,
        "shape": None if tensor.shape is None else list(tensor.shape),
        "requires_grad": tensor.requires_grad,
    }
    if tensor.storage is not None:
        entry |= {"storage": tensor.storage, "offset": tensor.offset, "stride": list(tensor.stride)}
    if not tensor.is_persistent:
        entry["persistent"] = False
    if tensor.device != "cpu":
        entry["device"] = tensor.device
    if tensor.form:
        entry["form"] = tensor.form
    return entry


def tensors_from_json(record: Mapping[str, Json]) -> dict[str, tuple[TensorFacts, ...]]:
    """Read back what :func:`tensors_to_json` made.

    Raises:
        KeyError, TypeError, ValueError: it made something else.
    """
    kinds = dict[str, tuple[TensorFacts, ...]]
    resources = from_json(kinds, record["resources"], "'resources' of the record")
    for tensor in chain.from_iterable(resources.values()):
        _check(tensor)
    return resources


def _check(tensor: TensorFacts) -> None:
    sizes = (*(tensor.shape or ()), *tensor.stride, tensor.offset)
    if max(len(tensor.shape or ()), len(tensor.stride)) > _MAX_DIMENSIONS:
        raise ValueError(f"{tensor.name!r} has too many dimensions")
    is_stored = tensor.storage is not None
    if is_stored and (tensor.shape is None or len(tensor.shape) != len(tensor.stride)):
        raise ValueError(f"the shape and the stride of {tensor.name!r} do not go together")
    if max(sizes) >= _MOST or tensor.numel >= _MOST or tensor.offset + tensor.span >= _MOST:
        raise ValueError(f"{tensor.name!r} is too large for any machine")


LARGE: Final = 1_000_000
"""Bytes of a storage from which on it matters what of it is used."""


class StorageView(NamedTuple):
    """The elements of a storage that a tensor is made of.

    Attributes:
        offset: elements of the storage before its first one.
        shape: its sizes.
        stride: how many elements of the storage lie between neighbors, by dimension.
        item_bytes: bytes of one element.
    """

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    item_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the elements that it has; of those that it repeats, once.

        >>> StorageView(0, (5, 3), (0, 1), 4).size_bytes
        12
        """
        steps = zip(self.shape, self.stride, strict=True)
        return self.item_bytes * prod(size if step or not size else 1 for size, step in steps)

    @property
    def reach(self) -> tuple[int, int]:
        """The bytes of the storage from its first element to its last one.

        >>> StorageView(10, (2, 2), (100, 1), 4).reach
        (40, 448)
        """
        start = self.offset * self.item_bytes
        if 0 in self.shape:
            return start, start
        steps = zip(self.shape, self.stride, strict=True)
        return start, start + self.item_bytes * (1 + sum((n - 1) * step for n, step in steps))


def bytes_used(views: Collection[StorageView]) -> int:
    """How many bytes of a storage some views use together; never too few.

    Two columns of a matrix reach over nearly all of it, and use two columns; two views of the
    same rows have these rows twice, and use them once.

    >>> columns = [StorageView(at, (1000,), (100,), 1) for at in (0, 1)]
    >>> rows = [StorageView(0, (10, 100), (100, 1), 1)] * 2
    >>> bytes_used(columns), bytes_used(rows)
    (2000, 1000)
    """
    distinct = set(views)
    return min(sum(view.size_bytes for view in distinct), _length(v.reach for v in distinct))


def is_mostly_unused(size: int, used: int) -> bool:
    """Whether a storage costs far more than what is used of it.

    Args:
        size: its bytes.
        used: those that are used.

    >>> is_mostly_unused(4_000_000, 12), is_mostly_unused(4_000_000, 2_000_000)
    (True, False)
    >>> is_mostly_unused(4_000, 12)
    False
    """
    return size - used >= LARGE and 2 * used < size


def _length(stretches: Iterable[tuple[int, int]]) -> int:
    """How much some stretches cover together."""
    covered = until = 0
    for start, end in sorted(stretches):
        covered += max(0, end - max(start, until))
        until = max(until, end)
    return covered
