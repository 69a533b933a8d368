"""Rows of inputs: what all files have in common, values as a whole, and JSON documents."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Generic, NamedTuple, TypeVar

import torch

from modpack.core.text import dtype_name
from modpack.errors import DataError, InputMismatchError, ModpackWarning, listed
from modpack.predicting.decoding import (
    decode_named,
    decode_value,
    dtype_of,
    name_json,
    parse_document,
)
from modpack.predicting.rows import BadRow, Chunk, Layout, Place, Source, row_chunk, row_spec, take
from modpack.predicting.values import can_convert, check_inputs, convert, join_problems

ROWS_READ: Final = 1024
"""Rows that are converted at once if all rows form one batch, and rows of a .parquet file that are
read at once: reading a batch of 32 rows with 784 columns takes as long."""

_Row = TypeVar("_Row")


class RowSource(ABC, Generic[_Row]):
    """Rows that are converted together if all of them are good, and otherwise one by one.

    Together is about 10 times faster.

    Args:
        file: The file, for messages.
        layout: The layout of the call.
        total: Number of rows, for the progress display only; None if only reading counts them.
    """

    is_whole: bool = False

    def __init__(self, file: str, layout: Layout, total: int | None = None) -> None:
        self._file, self._layout, self.total = file, layout, total
        self._size = layout.size or ROWS_READ
        self._row_specs = {name: row_spec(layout, name) for name in layout.specs}

    def chunks(self) -> Iterator[Chunk | BadRow]:
        for places, rows in self._blocks():
            values = self._joint_values(rows) if self._layout.rows else None
            if values is not None:
                for start in range(0, len(places), self._size):
                    stop = start + self._size
                    part = take(values, start, stop, self._layout.rows)
                    yield Chunk(part, places[start:stop])
                continue
            for place, row in zip(places, self._each(rows), strict=True):
                try:
                    yield row_chunk(self._layout, self._decode(row), place)
                except InputMismatchError as failure:
                    yield BadRow(place, join_problems(failure))

    def _blocks(self) -> Iterator[tuple[Sequence[Place], Any]]:
        """Yield rows that are converted together, with their places."""
        rows = self._rows()
        while block := list(islice(rows, self._size)):
            yield [place for place, _ in block], [row for _, row in block]

    def _rows(self) -> Iterator[tuple[Place, _Row]]:
        """Yield the rows with their places."""
        raise NotImplementedError

    def _each(self, rows: Any) -> Iterable[_Row]:
        """Return the rows of a block one by one."""
        return rows  # type: ignore[no-any-return]

    def _joint_values(self, rows: Any) -> dict[str, object] | None:
        """Return the values of all rows at once, or None if they must be converted one by one."""
        try:
            values = self._decode_all(rows)
            if values is not None:
                check_inputs(self._layout.signature, values)
        except InputMismatchError:
            return None
        return values

    @abstractmethod
    def _decode(self, row: _Row) -> dict[str, object]:
        """Return the values of one row, without a dimension of rows.

        Raises:
            InputMismatchError: If a value cannot be converted.
        """

    @abstractmethod
    def _decode_all(self, rows: Any) -> dict[str, object] | None:
        """Return the values of several rows, or None if that is not possible at once.

        Raises:
            InputMismatchError: If a value cannot be converted.
        """


class ListSource(RowSource[object]):
    """Rows of a list in JSON.

    Args:
        file: The file, for messages.
        layout: The layout of the call.
        rows: The parsed list.
    """

    def __init__(self, file: str, layout: Layout, rows: Sequence[object]) -> None:
        super().__init__(file, layout, len(rows))
        self._list = rows

    def _rows(self) -> Iterator[tuple[Place, object]]:
        for number, row in enumerate(self._list, 1):
            yield Place(self._file, number), row

    def _decode(self, row: object) -> dict[str, object]:
        return decode_named(self._layout.signature, self._row_specs, row)

    def _decode_all(self, rows: Sequence[object]) -> dict[str, object] | None:
        return decode_rows(self._layout, rows)


def decode_rows(layout: Layout, rows: Sequence[object]) -> dict[str, object] | None:
    """Return the values of parsed rows at once, or None if they must be converted one by one."""
    named = [name_json(layout.signature, row) for row in rows]
    names = named[0].keys()
    if not names <= layout.rows or any(each.keys() != names for each in named):
        return None
    specs = layout.specs
    if any(specs[name].type != "tensor" for name in names):
        return None
    return {n: decode_value(specs[n], [each[n] for each in named]) for n in names}


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


def in_memory(tensor: torch.Tensor) -> StoredArray:
    """Return a tensor that is in memory as an array."""

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


def open_arguments(file: str, layout: Layout, data: object) -> ArraySource:
    """Return the arguments of one call in JSON: an object with a value for each input.

    Raises:
        DataError: If a value does not fit the call signature.
    """
    try:
        values = decode_named(layout.signature, layout.specs, data)
    except InputMismatchError as failure:
        raise DataError(file, "; ".join(failure.problems)) from failure
    stored = {n: in_memory(v) if isinstance(v, torch.Tensor) else v for n, v in values.items()}
    return ArraySource(file, layout, stored)


def open_document(file: str, layout: Layout, content: bytes) -> Source:
    """Return the rows of a JSON document: a list of rows, or the arguments of one call.

    Args:
        file: The file, for messages.
        layout: The layout of the call.
        content: The document.

    Raises:
        DataError: If it is not JSON, or a value does not fit the call signature.
    """
    try:
        data = parse_document(content)
    except InputMismatchError as failure:
        reason = join_problems(failure)
        is_nan = reason.endswith("is not a JSON number")
        hint = "Pass such numbers in a .npy or .parquet file." if is_nan else ""
        raise DataError(file, reason, hint=hint) from failure
    is_typed = all(spec.type != "any" for spec in layout.signature.inputs)
    if isinstance(data, list) and is_typed:
        if layout.rows or all(isinstance(each, dict) for each in data):
            return ListSource(file, layout, data)
    return open_arguments(file, layout, data)
