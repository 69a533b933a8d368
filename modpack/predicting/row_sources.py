"""Rows of inputs: what all files have in common, values as a whole, and JSON documents."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Generic, TypeVar

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
from modpack.predicting.values import can_convert, convert, join_problems

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
            # If one row is bad, all rows of the block are converted again, so that errors name
            # their row.
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
                self._layout.form.check(values)
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


class JsonSource(RowSource[Any]):
    """Rows in JSON.

    Args:
        file: The file, for messages.
        layout: The layout of the call.
        rows: The rows with their places.
        total: Number of rows; None if only reading counts them.
        parse: Returns the JSON of a row that is not parsed yet.
    """

    def __init__(
        self,
        file: str,
        layout: Layout,
        rows: Iterator[tuple[Place, Any]],
        total: int | None = None,
        parse: Callable[[Any], object] = lambda row: row,
    ) -> None:
        super().__init__(file, layout, total)
        self._listed, self._parse = rows, parse

    def _rows(self) -> Iterator[tuple[Place, Any]]:
        return self._listed

    def _decode(self, row: Any) -> dict[str, object]:
        return decode_named(self._layout.signature, self._row_specs, self._parse(row))

    def _decode_all(self, rows: Sequence[Any]) -> dict[str, object] | None:
        return decode_rows(self._layout, [self._parse(row) for row in rows])


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


class ArraySource(RowSource[int]):
    """Values that are stored as a whole, with a first dimension of rows or without.

    A tensor may be mapped from a file, so its rows are read and converted when they are used.

    Args:
        file: The file, for messages.
        layout: The layout of the call.
        values: Tensors and plain values by name.

    Raises:
        DataError: If the values do not fit the call signature.
    """

    def __init__(self, file: str, layout: Layout, values: Mapping[str, object]) -> None:
        self._file, self._layout, self._values = file, layout, values
        self._dtypes = self._conversions()
        tensors = {name: v for name, v in values.items() if isinstance(v, torch.Tensor)}
        outlines = {  # with the dtypes of the call, and without contents
            name: torch.empty(v.shape, dtype=self._dtypes.get(name, v.dtype), device="meta")
            for name, v in tensors.items()
        }
        described = {**values, **outlines}
        try:
            layout.form.check(described)
            rows = {n: v for n, v in tensors.items() if n in layout.rows and v.dim()}
            self.is_whole = not rows
        except InputMismatchError as failure:
            # Without a batch dimension, the first dimension may count calls.
            rows = {} if layout.rows else tensors
            if not self._are_single_calls(described, rows):
                raise DataError(file, join_problems(failure)) from failure
        self._row_names = rows.keys()
        counts = {len(tensor): name for name, tensor in rows.items()}
        if len(counts) > 1:
            listed = ", ".join(f"{count} in {name!r}" for count, name in counts.items())
            raise DataError(file, f"the inputs have different numbers of rows: {listed}")
        total = next(iter(counts), 1)
        super().__init__(file, layout, total)
        self._size = layout.size or max(total, 1)

    def _conversions(self) -> dict[str, torch.dtype]:
        """Return the dtypes of the call that tensors of the file can and must be converted to."""
        dtypes: dict[str, torch.dtype] = {}
        changes: list[str] = []
        for name, value in self._values.items():
            spec = self._layout.specs.get(name)
            if isinstance(value, torch.Tensor) and spec is not None and spec.type == "tensor":
                dtype = dtype_of(name, spec.dtype)
                if dtype != value.dtype and can_convert(value.dtype, dtype):
                    dtypes[name] = dtype
                    change = f"{dtype_name(value.dtype)} to {dtype_name(dtype)}"
                    changes.append(f"{name!r} from {change}")
        if changes:
            text = f"{self._file}: converted {listed(changes, 10)}"
            warnings.warn(text, ModpackWarning, stacklevel=2)
        return dtypes

    def _are_single_calls(
        self, described: Mapping[str, object], rows: Mapping[str, torch.Tensor]
    ) -> bool:
        if not rows or not all(tensor.dim() and len(tensor) for tensor in rows.values()):
            return False
        firsts = {
            name: value[0] if isinstance(value, torch.Tensor) else value
            for name, value in described.items()
        }
        try:
            self._layout.form.check(firsts)
        except InputMismatchError:
            return False
        return True

    def _blocks(self) -> Iterator[tuple[Sequence[Place], range]]:
        whole = {n: value for n, value in self._values.items() if n not in self._row_names}
        try:
            self._fixed = {name: self._converted(name, value) for name, value in whole.items()}
        except InputMismatchError as failure:
            raise DataError(self._file, join_problems(failure)) from failure
        total = self.total or 0
        for start in range(0, total, self._size):
            rows = range(start, min(start + self._size, total))
            yield [Place(self._file, row + 1) for row in rows], rows

    def _decode_all(self, rows: range) -> dict[str, object]:
        chosen = take(self._values, rows.start, rows.stop, self._row_names)
        return {
            name: self._converted(name, value) if name in self._row_names else self._fixed[name]
            for name, value in chosen.items()
        }

    def _decode(self, row: int) -> dict[str, object]:
        values = self._decode_all(range(row, row + 1))
        return {n: v[0] if n in self._row_names else v for n, v in values.items()}  # type: ignore[index]

    def _converted(self, name: str, value: object) -> object:
        """Return a value in the dtype of the call.

        Raises:
            InputMismatchError: If a number does not fit; the error names the first one.
        """
        dtype = self._dtypes.get(name)
        if dtype is None or not isinstance(value, torch.Tensor):
            return value
        converted = convert(value, dtype)
        if converted is None:
            wrong = value.flatten()
            while wrong.numel() > 1:  # find the first number that does not fit
                half = wrong.numel() // 2
                wrong = wrong[half:] if convert(wrong[:half], dtype) is not None else wrong[:half]
            text = f"{wrong.item()} is not exact or out of range in {dtype_name(dtype)}"
            raise InputMismatchError((f"input {name!r}: {text}",))
        return converted


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
    # Without a call signature, a list can be a value as well as rows.
    is_typed = all(spec.type != "any" for spec in layout.signature.inputs)
    if isinstance(data, list) and is_typed:
        if layout.rows or all(isinstance(each, dict) for each in data):
            rows = ((Place(file, number), row) for number, row in enumerate(data, 1))
            return JsonSource(file, layout, rows, len(data))
    try:
        values = decode_named(layout.signature, layout.specs, data)
    except InputMismatchError as failure:
        raise DataError(file, join_problems(failure)) from failure
    return ArraySource(file, layout, values)
