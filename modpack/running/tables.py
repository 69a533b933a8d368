"""Inputs from tables: the columns of each input, .csv files, and .parquet files."""

from __future__ import annotations

import csv
import math
import re
import sys
import warnings
from abc import abstractmethod
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from modpack.core.call_signature import ValueSpec
from modpack.core.names import did_you_mean
from modpack.errors import DataError, InputMismatchError, ModpackWarning, listed
from modpack.predicting.decoding import decode_value, dtype_of
from modpack.predicting.row_sources import ROWS_READ, RowSource
from modpack.predicting.rows import Layout, Place, row_spec
from modpack.predicting.values import convert
from modpack.running.inputs import reading, require_library


class Assignment(NamedTuple):
    """The columns of one input.

    Attributes:
        name: The input.
        columns: Numbers of the columns, from 0.
        is_vector: Whether the columns are the elements of a tensor; otherwise it is one column with
            the value.
    """

    name: str
    columns: tuple[int, ...]
    is_vector: bool


def assign_columns(file: str, layout: Layout, columns: Sequence[str]) -> tuple[Assignment, ...]:
    """Return the columns of each input.

    The user chooses them with :attr:`.Layout.columns`. Otherwise, a column with the name of an
    input contains its values, and columns ``x.0``, ``x.1``, ... are the elements of the input
    ``x``. If there is only one input, and no column has such a name, all columns in their order
    are its elements, except those to keep. Other columns are ignored, with a warning.

    Raises:
        DataError: If a column is missing or named twice, the number of columns does not fit, or the
            package has no call signature.
    """
    if any(spec.type == "any" for spec in layout.signature.inputs):
        raise DataError(
            file,
            "the package has no call signature, so the types of its inputs are unknown",
            hint="Export it with example_inputs, or pass a file of arrays.",
        )
    twice = [column for column, times in Counter(columns).items() if times > 1]
    if twice:
        raise DataError(file, f"the column {twice[0]!r} occurs twice")
    found: list[Assignment] = []
    missing: list[str] = []
    places = {column: index for index, column in enumerate(columns)}
    chosen = [column for each in layout.columns.values() for column in each]
    for column in (*chosen, *layout.keep):
        if column not in places:
            text = did_you_mean(column, columns, f"The columns are {_quoted_columns(columns)}.")
            raise DataError(file, f"there is no column {column!r}", hint=text)
    for spec in layout.signature.inputs:
        if own := layout.columns.get(spec.name):
            indexes = tuple(places[column] for column in own)
            found.append(Assignment(spec.name, indexes, len(own) > 1))
            continue
        if spec.name in places:
            found.append(Assignment(spec.name, (places[spec.name],), False))
            continue
        pattern = re.compile(rf"{re.escape(spec.name)}\.(\d+)")
        numbered = {int(m[1]): i for c, i in places.items() if (m := pattern.fullmatch(c))}
        # With a gap in the numbers, these columns are not the elements of one tensor.
        if numbered and sorted(numbered) == list(range(len(numbered))):
            indexes = tuple(numbered[number] for number in range(len(numbered)))
            found.append(Assignment(spec.name, indexes, True))
        elif spec.required:
            missing.append(spec.name)
    if missing and not found and len(missing) == 1:
        rest = tuple(index for column, index in places.items() if column not in layout.keep)
        found, missing = [Assignment(missing[0], rest, True)], []
    if missing:
        raise DataError(
            file,
            f"the file has no column for the input {missing[0]!r}; its columns are "
            f"{_quoted_columns(columns)}",
            hint=_advice(missing[0]),
        )
    for each in found:
        _check_count(file, layout, each)
    used = {places[column] for column in layout.keep}
    used.update(index for each in found for index in each.columns)
    ignored = [repr(column) for index, column in enumerate(columns) if index not in used]
    if ignored:
        warnings.warn(
            f"{file}: ignored columns {listed(ignored, 10)}. "
            "To write a column to the output, pass --keep COLUMN.",
            ModpackWarning,
            stacklevel=2,
        )
    return tuple(found)


def _quoted_columns(columns: Sequence[str]) -> str:
    return listed([repr(column) for column in columns], 10)


def _advice(name: str) -> str:
    return (
        f"Choose the columns with --columns {name}=COLUMN,..., and carry others to the output with "
        "--keep COLUMN."
    )


def _check_count(file: str, layout: Layout, assigned: Assignment) -> None:
    spec, name = layout.specs[assigned.name], assigned.name
    shape = row_spec(layout, name).shape
    if not assigned.is_vector or shape is None:
        if assigned.is_vector and spec.type != "any":
            raise DataError(file, f"the input {name!r} is one {spec}, not several columns")
        return
    sizes = [size for size in shape if isinstance(size, int)]
    count, varying = len(assigned.columns), len(shape) - len(sizes)
    if varying > 1 or (not varying and math.prod(sizes) != count) or not shape:
        raise DataError(
            file,
            f"the input {name!r} is {spec}, which does not fit {count} columns",
            hint=_advice(name),
        )


def _decode_cells(assigned: Assignment, spec: ValueSpec, cells: Sequence[object]) -> object:
    """Return the value of an input in one row; several cells are in row-major order."""
    if not assigned.is_vector:
        return decode_value(spec, cells[0])
    value = decode_value(spec, cells)
    if not isinstance(value, torch.Tensor) or spec.shape is None or len(spec.shape) < 2:
        return value
    try:
        return value.reshape(open_sizes(spec.shape))
    except RuntimeError:
        return value  # the check of the shape explains it


def open_sizes(shape: Sequence[int | str]) -> list[int]:
    """Return dimensions for :meth:`torch.Tensor.reshape`: -1 for one that varies."""
    return [size if isinstance(size, int) else -1 for size in shape]


class CsvSource(RowSource[list[str]]):
    """Rows of a CSV file whose first line names the columns.

    Args:
        file: The file.
        layout: The layout of the call.
    """

    def __init__(self, file: str, layout: Layout) -> None:
        super().__init__(file, layout)
        # Spreadsheets write a byte order mark, which would become a part of the first column's
        # name.
        with reading(file), Path(file).open(encoding="utf-8-sig", newline="") as stream:
            header = next(csv.reader(stream), None)
        if not header:
            raise DataError(file, "the file has no header line with column names", line=1)
        self._header = header
        self._assigned = assign_columns(file, layout, header)
        self._kept = [header.index(column) for column in layout.keep]
        csv.field_size_limit(min(sys.maxsize, (1 << 31) - 1))  # the default is 128 KiB

    def _rows(self) -> Iterator[tuple[Place, list[str]]]:
        with reading(self._file), Path(self._file).open(encoding="utf-8-sig", newline="") as stream:
            # PyArrow's reader reports a bad value without its line, and ends there.
            rows = csv.reader(stream, strict=True)
            line, number = 1, 0
            try:
                for row in rows:
                    if row and line > 1:
                        number += 1
                        is_complete = len(row) == len(self._header)
                        kept = tuple(row[index] for index in self._kept) if is_complete else ()
                        yield Place(self._file, number, line, kept), row
                    # Cells can contain line breaks: line_num is the last line of this row.
                    line = rows.line_num + 1
            except csv.Error as failure:
                raise DataError(
                    self._file, f"the file is not valid CSV: {failure}", line=line
                ) from failure

    def _decode(self, row: list[str]) -> dict[str, object]:
        header = self._header
        if len(row) != len(header):
            text = f"expected {len(header)} columns as in the first line, got {len(row)}"
            raise InputMismatchError((text,))
        values: dict[str, object] = {}
        for each in self._assigned:
            spec = self._row_specs[each.name]
            cells = [_parse(row[index], spec, header[index]) for index in each.columns]
            values[each.name] = _decode_cells(each, spec, cells)
        return values

    def _decode_all(self, rows: Sequence[list[str]]) -> dict[str, object] | None:
        # None leads to _decode for each row, which finds the bad row and explains it.
        if any(len(row) != len(self._header) for row in rows):
            return None
        values: dict[str, object] = {}
        for each in self._assigned:
            spec = self._layout.specs[each.name]
            if each.name not in self._layout.rows or spec.dtype is None:
                return None
            tensor = _parse_numbers(rows, each.columns, dtype_of(spec.name, spec.dtype))
            if tensor is None:
                return None
            values[each.name] = tensor.reshape(len(rows), *open_sizes((spec.shape or ())[1:]))
        return values


def _parse_numbers(
    rows: Sequence[Sequence[str]], columns: Sequence[int], dtype: torch.dtype
) -> torch.Tensor | None:
    """Return some cells of all rows as numbers, or None if one is not a number that fits."""
    if dtype is torch.bool or dtype.is_complex:
        return None
    if list(columns) == list(range(len(rows[0]))):
        cells: Iterable[str] = chain.from_iterable(rows)
    else:
        cells = (row[index] for row in rows for index in columns)
    try:
        if dtype.is_floating_point:
            numbers = torch.frombuffer(array("d", map(float, cells)), dtype=torch.float64)
        else:
            numbers = torch.frombuffer(array("q", map(int, cells)), dtype=torch.int64)
    except (OverflowError, ValueError):
        return None
    # Infinities and nan are refused row by row, with their place.
    if not bool(numbers.isfinite().all()):
        return None
    return convert(numbers, dtype)


_TRUTHS: Final = {"true": True, "false": False, "1": True, "0": False}


def _parse(cell: str, spec: ValueSpec, column: str) -> object:
    """Return the value of a cell as JSON would have it.

    Raises:
        InputMismatchError: If it is not of the type of the input.
    """
    text = cell.strip()
    kind = spec.dtype or spec.type
    try:
        if kind in ("str", "bytes"):
            return cell
        if kind == "none":
            return text or None
        if kind == "bool":
            return _TRUTHS[text.lower()]
        return int(text) if kind.startswith(("int", "uint")) else float(text)
    except (KeyError, ValueError):
        expected = {"bool": "true or false"}.get(kind, "a number")
        shown = f"{text[:40]!r}" if text else "an empty cell"
        reason = f"column {column!r}: expected {expected} for {kind}, got {shown}"
        raise InputMismatchError((reason,)) from None


class ArrowSource(RowSource[Any]):
    """Rows of Arrow's record batches.

    Args:
        file: The file, for messages.
        layout: The layout of the call.
        columns: The names of all columns.
        total: Number of rows.
    """

    def __init__(self, file: str, layout: Layout, columns: Sequence[str], total: int) -> None:
        super().__init__(file, layout, total)
        self._columns = columns
        self._assigned = assign_columns(file, layout, columns)

    @abstractmethod
    def _batches(self) -> Iterator[Any]:
        """Yield the record batches."""

    def _blocks(self) -> Iterator[tuple[Sequence[Place], Any]]:
        done = 0
        for batch in self._batches():
            keep = self._layout.keep
            kept = (map(_keepable, batch.column(column).to_pylist()) for column in keep)
            rows = [*zip(*kept, strict=True)] or [()] * batch.num_rows
            yield [Place(self._file, n, None, own) for n, own in enumerate(rows, done + 1)], batch
            done += batch.num_rows

    def _each(self, rows: Any) -> Iterator[Any]:
        return (rows.slice(row, 1) for row in range(rows.num_rows))

    def _decode_all(self, rows: Any) -> dict[str, object] | None:
        values: dict[str, object] = {}
        for each in self._assigned:
            tensor = self._batch_tensor(rows, each) if each.name in self._layout.rows else None
            if tensor is None:
                return None
            values[each.name] = tensor
        return values

    def _decode(self, row: Any) -> dict[str, object]:
        values: dict[str, object] = {}
        for each in self._assigned:
            tensor = self._batch_tensor(row, each)
            if tensor is not None:
                values[each.name] = tensor[0]
                continue
            spec = self._row_specs[each.name]
            cells = [row.column(self._columns[index])[0].as_py() for index in each.columns]
            values[each.name] = _decode_cells(each, spec, cells)
        return values

    def _batch_tensor(self, batch: Any, assigned: Assignment) -> torch.Tensor | None:
        spec = self._layout.specs[assigned.name]
        if spec.type != "tensor":
            return None
        dtype = dtype_of(spec.name, spec.dtype)
        parts: list[torch.Tensor] = []
        for index in assigned.columns:
            part = column_tensor(batch.column(self._columns[index]))
            if part is None or (assigned.is_vector and part.dim() != 1):
                return None
            parts.append(part)
        if not assigned.is_vector:
            return convert(parts[0], dtype)
        # Stacking needs one dtype, so that columns of several dtypes are converted before it.
        if len({part.dtype for part in parts}) == 1:
            stacked = convert(torch.stack(parts, 1), dtype)
        else:
            converted = [each for part in parts if (each := convert(part, dtype)) is not None]
            stacked = torch.stack(converted, 1) if len(converted) == len(parts) else None
        if stacked is None:
            return None
        sizes = open_sizes((spec.shape or ())[1:])
        return stacked.reshape(len(stacked), *sizes) if len(stacked) else stacked


class ParquetSource(ArrowSource):
    """Rows of a .parquet file, which are read in batches.

    Args:
        file: The file.
        layout: The layout of the call.
    """

    def __init__(self, file: str, layout: Layout) -> None:
        library = require_library("pyarrow.parquet", ".parquet files")
        with reading(file):
            self._opened = library.ParquetFile(file, memory_map=True)
        rows = self._opened.metadata.num_rows
        super().__init__(file, layout, self._opened.schema_arrow.names, rows)

    def _batches(self) -> Iterator[Any]:
        used = [self._columns[index] for each in self._assigned for index in each.columns]
        used = list(dict.fromkeys([*used, *self._layout.keep]))
        # A multiple of the batch size, so that blocks are cut into full batches.
        count = self._size * max(ROWS_READ // self._size, 1)
        batches = self._opened.iter_batches(count, columns=used)
        while True:
            with reading(self._file):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


class BatchSource(ArrowSource):
    """Rows of a batch in memory, which are one call if the call has a dimension of rows.

    Args:
        label: The batch, for messages.
        layout: The layout of the call.
        batch: A mapping of names to NumPy arrays, a pandas DataFrame, or an Arrow table.

    Raises:
        DataError: If a column cannot be converted, or the columns do not fit the call signature.
    """

    def __init__(self, label: str, layout: Layout, batch: Any) -> None:
        self._batch = _record_batch(label, batch)
        super().__init__(label, layout, self._batch.schema.names, self._batch.num_rows)
        self._size = max(self._batch.num_rows, 1)

    def _batches(self) -> Iterator[Any]:
        yield self._batch


def _record_batch(label: str, batch: Any) -> Any:
    """Return a batch as Arrow's record batch, which shares the memory of numbers."""
    arrow = require_library("pyarrow", "batches of tables")
    is_arrow = isinstance(batch, (arrow.Table, arrow.RecordBatch))
    columns = zip(batch.schema.names, batch.columns, strict=True) if is_arrow else batch.items()
    names: list[str] = []
    arrays: list[Any] = []
    for name, column in columns:
        try:
            names.append(str(name))
            arrays.append(_arrow_array(arrow, column))
        except (arrow.ArrowException, TypeError, ValueError) as failure:
            reason = " ".join(str(failure).split())
            raise DataError(label, f"column {name!r} cannot be read: {reason:.200}") from failure
    try:
        return arrow.RecordBatch.from_arrays(arrays, names=names)
    except ValueError as failure:
        lengths = listed([f"{len(a)} in {n!r}" for n, a in zip(names, arrays, strict=True)], 10)
        reason = f"the columns have different numbers of rows: {lengths}"
        raise DataError(label, reason) from failure


def _arrow_array(arrow: Any, column: Any) -> Any:
    numpy = require_library("numpy", "batches of tables")
    if isinstance(column, arrow.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, arrow.Array):
        if not isinstance(column, arrow.ExtensionArray):
            return column
        # Tensors in tables, of Arrow and of Ray.
        column = column.to_numpy_ndarray()
    values = numpy.asarray(column)
    # In pandas, NaN also marks missing text; among numbers, it is a number.
    array = arrow.array(values.reshape(-1), from_pandas=values.dtype.kind == "O")
    for size in reversed(values.shape[1:]):
        array = arrow.FixedSizeListArray.from_arrays(array, size)
    return array


def _keepable(value: object) -> object:
    """Return a cell as a value that every format of outputs has: dates become text."""
    if isinstance(value, list):
        return [_keepable(each) for each in value]
    return value if isinstance(value, (bool, int, float, str, bytes, type(None))) else str(value)


def column_tensor(column: Any) -> torch.Tensor | None:
    """Return a column of numbers, or of lists of equal lengths, as a tensor.

    Returns:
        The tensor; None if the column has other values, missing ones, or ragged lists.
    """
    arrow = require_library("pyarrow", ".parquet files")
    compute = require_library("pyarrow.compute", ".parquet files")
    types, shape = arrow.types, [len(column)]
    # A tensor needs lists of one length at each depth.
    while _is_list(types, column.type):
        if column.null_count:
            return None
        if types.is_fixed_size_list(column.type):
            shape.append(column.type.list_size)
        else:
            lengths = compute.list_value_length(column)
            if len(lengths.unique()) != 1:
                return None
            shape.append(lengths[0].as_py())
        column = column.flatten()
    kind = column.type
    is_number = types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)
    if column.null_count or not is_number:
        return None
    numpy = require_library("numpy", ".parquet files")
    # Arrow's memory can be read-only, and a model may change its inputs: hence a copy below.
    array = column.to_numpy(zero_copy_only=False)
    return torch.from_numpy(numpy.array(array)).reshape(shape)


def _is_list(types: Any, kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
