"""Inputs from files of arrays: .npy, .npz, .pt, and .safetensors; and whole arguments in JSON."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from modpack.core.text import dtype_name
from modpack.errors import DataError, InputMismatchError, ModpackWarning, listed
from modpack.predicting.rows import Layout, Place
from modpack.predicting.values import can_convert, check_inputs, convert, describe, join_problems
from modpack.running.decoding import (
    decode_named,
    decode_value,
    dtype_of,
    flatten_named,
    only_input,
    parse_document,
)
from modpack.running.inputs import reading, require_library
from modpack.running.row_files import RowSource

_ONE_ARRAY: Final = "save one array with the name of each input, or pass NAME=FILE for each"


class StoredArray(NamedTuple):
    """An array that is read in parts.

    Attributes:
        dtype: Its dtype.
        shape: Its dimensions.
        read: Returns the rows from the first number to the second. Without numbers, everything.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[..., torch.Tensor]

    @property
    def outline(self) -> torch.Tensor:
        """A tensor with this dtype and shape, and without contents."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta")


def _stored(tensor: torch.Tensor) -> StoredArray:
    def read(*bounds: int) -> torch.Tensor:
        return tensor[slice(*bounds)] if bounds else tensor

    return StoredArray(tensor.dtype, tuple(tensor.shape), read)


class ArraySource(RowSource[int]):
    """Values that are stored as a whole, with a first dimension of rows or without.

    Args:
        file: The file, for messages.
        layout: The layout of the call.
        values: Stored arrays and plain values by name.

    Raises:
        DataError: If the values do not fit the call signature.
    """

    def __init__(self, file: str, layout: Layout, values: Mapping[str, object]) -> None:
        self._file, self._layout = file, layout
        values = self._values = self._converted(values)
        self._arrays = {n: v for n, v in values.items() if isinstance(v, StoredArray)}
        outlines = {
            name: value.outline if isinstance(value, StoredArray) else value
            for name, value in values.items()
        }
        try:
            check_inputs(layout.signature, outlines)
            rows = {n: a for n, a in self._arrays.items() if n in layout.rows and a.shape}
            self.is_whole = not rows
        except InputMismatchError as failure:
            rows = {} if layout.rows else self._arrays
            if not self._are_single_calls(outlines):
                raise DataError(file, join_problems(failure)) from failure
        self._row_arrays = rows
        counts = {array.shape[0]: name for name, array in rows.items()}
        if len(counts) > 1:
            listed = ", ".join(f"{count} in {name!r}" for count, name in counts.items())
            raise DataError(file, f"the inputs have different numbers of rows: {listed}")
        total = next(iter(counts), 1)
        super().__init__(file, layout, total)
        self._size = layout.size or max(total, 1)

    def _converted(self, values: Mapping[str, object]) -> dict[str, object]:
        """Return values whose arrays get the dtypes of the call when they are read."""
        found, changes = dict(values), []
        for name, value in values.items():
            spec = self._layout.specs.get(name)
            if not isinstance(value, StoredArray) or spec is None or spec.type != "tensor":
                continue
            dtype = dtype_of(spec.name, spec.dtype)
            if dtype != value.dtype and can_convert(value.dtype, dtype):
                found[name] = _converting(name, value, dtype)
                changes.append(f"{name!r} from {dtype_name(value.dtype)} to {dtype_name(dtype)}")
        if changes:
            text = f"{self._file}: converted {listed(changes, 10)}"
            warnings.warn(text, ModpackWarning, stacklevel=2)
        return found

    def _are_single_calls(self, outlines: Mapping[str, object]) -> bool:
        """Return whether the first dimension counts calls, of a model without a batch dimension."""
        if self._layout.rows or not self._arrays:
            return False
        if not all(array.shape and array.shape[0] for array in self._arrays.values()):
            return False
        firsts = {
            name: value[0] if isinstance(value, torch.Tensor) else value
            for name, value in outlines.items()
        }
        try:
            check_inputs(self._layout.signature, firsts)
        except InputMismatchError:
            return False
        return True

    def _blocks(self) -> Iterator[tuple[Sequence[Place], range]]:
        try:
            self._fixed = {
                name: value.read() if isinstance(value, StoredArray) else value
                for name, value in self._values.items()
                if name not in self._row_arrays
            }
        except InputMismatchError as failure:
            raise DataError(self._file, join_problems(failure)) from failure
        total = self.total or 0
        for start in range(0, total, self._size):
            rows = range(start, min(start + self._size, total))
            yield [Place(self._file, row + 1) for row in rows], rows

    def _decode_all(self, rows: range) -> dict[str, object]:
        return {
            name: self._row_arrays[name].read(rows.start, rows.stop)
            if name in self._row_arrays
            else self._fixed[name]
            for name in self._values
        }

    def _decode(self, row: int) -> dict[str, object]:
        values = self._decode_all(range(row, row + 1))
        return {n: v[0] if n in self._row_arrays else v for n, v in values.items()}  # type: ignore[index]


def _converting(name: str, array: StoredArray, dtype: torch.dtype) -> StoredArray:
    """Return an array that is converted when it is read."""

    def read(*bounds: int) -> torch.Tensor:
        tensor = array.read(*bounds)
        converted = convert(tensor, dtype)
        if converted is None:
            wrong = tensor.flatten()
            while wrong.numel() > 1:  # find the first number that does not fit
                half = wrong.numel() // 2
                wrong = wrong[half:] if convert(wrong[:half], dtype) is not None else wrong[:half]
            text = f"{wrong.item()} is not exact or out of range in {dtype_name(dtype)}"
            raise InputMismatchError((f"input {name!r}: {text}",))
        return converted

    return StoredArray(dtype, array.shape, read)


def open_npy(file: str, layout: Layout) -> ArraySource:
    """Open a .npy file, which stays on disk until its rows are read."""
    numpy = require_library("numpy", ".npy files")
    _require_magic(file, b"\x93NUMPY")
    with reading(file):
        array = numpy.load(file, mmap_mode="r", allow_pickle=False)
    return _named(file, layout, {"": _numpy_array(file, array)})


def _require_magic(file: str, magic: bytes) -> None:
    """Check the first bytes of a file, which NumPy would otherwise take for a pickle."""
    with reading(file), Path(file).open("rb") as stream:
        found = stream.read(len(magic))
    if found != magic:
        kind = "a NumPy array" if magic == b"\x93NUMPY" else "an archive of NumPy arrays"
        raise DataError(file, f"the file is not {kind}")


def open_npz(file: str, layout: Layout) -> ArraySource:
    """Open an .npz file, whose arrays are read completely."""
    numpy = require_library("numpy", ".npz files")
    _require_magic(file, b"PK")
    # NumPy leaves a file that it has opened itself to the garbage collector if reading fails.
    with (
        reading(file),
        Path(file).open("rb") as stream,
        numpy.load(stream, allow_pickle=False) as archive,
    ):
        values: dict[str, object] = {name: archive[name] for name in archive.files}
    return _named(file, layout, {n: _numpy_array(file, a) for n, a in values.items()})


def open_pt(file: str, layout: Layout) -> ArraySource:
    """Open a file of ``torch.save``: a tensor, or a dict. Only tensors and plain values load."""
    with reading(file):
        try:
            loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except Exception as failure:
            if "Weights only load failed" not in str(failure):
                raise
            # torch's message continues with advice on how to run the code.
            reason = (
                "the file contains objects other than tensors and plain values, which can run code"
            )
            raise DataError(file, reason) from failure
    values = flatten_named(layout.signature, loaded) if isinstance(loaded, dict) else {"": loaded}
    stored = {n: _stored(v) if isinstance(v, torch.Tensor) else v for n, v in values.items()}
    return _named(file, layout, stored)


def open_safetensors(file: str, layout: Layout) -> ArraySource:
    """Open a .safetensors file, which stays on disk until its rows are read."""
    library = require_library("safetensors", ".safetensors files")
    with reading(file):
        opened = library.safe_open(file, framework="pt")
        values = {name: _safe_slice(opened, name) for name in opened.keys()}  # noqa: SIM118
    return _named(file, layout, values)


def _safe_slice(opened: Any, name: str) -> StoredArray:
    part = opened.get_slice(name)
    shape = tuple(part.get_shape())

    def read(*bounds: int) -> torch.Tensor:
        tensor: torch.Tensor = part[slice(*bounds)] if bounds else opened.get_tensor(name)
        return tensor

    first = part[0:0] if shape else opened.get_tensor(name)
    return StoredArray(first.dtype, shape, read)


def _numpy_array(file: str, array: Any) -> object:
    numpy = require_library("numpy", ".npy files")
    if array.dtype.kind in "SU" and not array.shape:
        return str(array)
    native = array.dtype.newbyteorder("=")
    try:
        dtype = torch.from_numpy(numpy.empty(0, native)).dtype
    except TypeError as failure:
        raise DataError(file, f"torch has no dtype for NumPy's {array.dtype}") from failure

    def read(*bounds: int) -> torch.Tensor:
        part = array[slice(*bounds)] if bounds else array
        return torch.from_numpy(numpy.array(part, dtype=native))

    return StoredArray(dtype, tuple(array.shape), read)


def open_arguments(file: str, layout: Layout, data: object) -> ArraySource:
    """Return the arguments of one call in JSON: an object with a value for each input.

    Raises:
        DataError: If a value does not fit the call signature.
    """
    try:
        values = decode_named(layout.signature, layout.specs, data)
    except InputMismatchError as failure:
        raise DataError(file, "; ".join(failure.problems)) from failure
    stored = {n: _stored(v) if isinstance(v, torch.Tensor) else v for n, v in values.items()}
    return ArraySource(file, layout, stored)


def read_plain(file: str, content: bytes, layout: Layout, name: str) -> object:
    """Return a plain value from the JSON document that contains it."""
    try:
        return decode_value(layout.specs[name], parse_document(content))
    except InputMismatchError as failure:
        raise DataError(file, join_problems(failure)) from failure


def _named(file: str, layout: Layout, values: Mapping[str, object]) -> ArraySource:
    """Return a source whose single, unnamed array is the only input."""
    known = {spec.name for spec in layout.signature.inputs}
    if len(values) == 1 and not known.issuperset(values):
        ((name, value),) = values.items()
        single = only_input(layout.signature)
        if single is not None and (not name or len(known) == 1):
            values = {single: value}
        elif not name:
            inputs = listed(map(repr, sorted(known)), 10)
            found = value.outline if isinstance(value, StoredArray) else value
            reason = f"the file contains one value, {describe(found)}; the inputs are {inputs}"
            raise DataError(file, reason, hint=f"To pass several, {_ONE_ARRAY}.")
    return ArraySource(file, layout, values)
