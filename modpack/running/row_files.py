"""Inputs row by row: lists in .json files, .jsonl files, and .csv files."""

from __future__ import annotations

import csv
import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Final, Generic, TypeVar

import torch

from modpack.core.call_signature import ValueSpec
from modpack.errors import DataError, InputMismatchError
from modpack.running.arrays import decode_named, name_json
from modpack.running.decoding import decode_value, dtype_of, parse_document
from modpack.running.inputs import join_problems, reading
from modpack.running.rows import BadRow, Chunk, Layout, Place, row_chunk, row_spec
from modpack.running.tables import Assignment, assign_columns, fold, open_sizes
from modpack.running.values import check_inputs, convert

_BLOCK_BYTES: Final = 1 << 20
_ROWS_READ: Final = 1024
"""Rows that are converted at once if all rows form one batch."""


_Row = TypeVar("_Row")


class RowSource(ABC, Generic[_Row]):
    """Rows that are converted together if all of them are good, and otherwise one by one.

    Together is about 10 times faster.

    Args:
        file: The file, for messages.
        layout: The layout of the call.
        total: Number of rows, for the progress display only.
    """

    is_whole = False

    def __init__(self, file: str, layout: Layout, total: int | None) -> None:
        self._file, self._layout, self.total = file, layout, total
        self._row_specs = {name: row_spec(layout, name) for name in layout.specs}

    def chunks(self) -> Iterator[Chunk | BadRow]:
        rows = self._rows()
        while block := list(islice(rows, self._layout.size or _ROWS_READ)):
            values = self._joint_values([row for _, row in block]) if self._layout.rows else None
            if values is not None:
                yield Chunk(values, [place for place, _ in block])
                continue
            for place, row in block:
                try:
                    yield row_chunk(self._layout, self._decode(row), place)
                except InputMismatchError as failure:
                    yield BadRow(place, join_problems(failure))

    def _joint_values(self, rows: Sequence[_Row]) -> dict[str, object] | None:
        """Return the values of all rows at once, or None if they must be converted one by one."""
        try:
            values = self._decode_all(rows)
            if values is not None:
                check_inputs(self._layout.signature, values)
        except InputMismatchError:
            return None
        return values

    @abstractmethod
    def _rows(self) -> Iterator[tuple[Place, _Row]]:
        """Yield the rows with their places."""

    @abstractmethod
    def _decode(self, row: _Row) -> dict[str, object]:
        """Return the values of one row, without a dimension of rows.

        Raises:
            InputMismatchError: If a value cannot be converted.
        """

    @abstractmethod
    def _decode_all(self, rows: Sequence[_Row]) -> dict[str, object] | None:
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
        return _decode_rows(self._layout, rows)


class JsonlSource(RowSource[bytes]):
    """Rows of a file with a JSON document on each line. Blank lines are ignored.

    Args:
        file: The file.
        layout: The layout of the call.
    """

    def __init__(self, file: str, layout: Layout) -> None:
        super().__init__(file, layout, _count_lines(file))

    def _rows(self) -> Iterator[tuple[Place, bytes]]:
        number = 0
        with reading(self._file), Path(self._file).open("rb") as stream:
            for line, text in enumerate(stream, 1):
                if row := text.strip():
                    number += 1
                    yield Place(self._file, number, line), row

    def _decode(self, row: bytes) -> dict[str, object]:
        return decode_named(self._layout.signature, self._row_specs, parse_document(row))

    def _decode_all(self, rows: Sequence[bytes]) -> dict[str, object] | None:
        return _decode_rows(self._layout, [parse_document(row) for row in rows])


def _decode_rows(layout: Layout, rows: Sequence[object]) -> dict[str, object] | None:
    named = [name_json(layout.signature, row) for row in rows]
    names = named[0].keys()
    if not names <= layout.rows or any(each.keys() != names for each in named):
        return None
    specs = layout.specs
    if any(specs[name].type != "tensor" for name in names):
        return None
    return {n: decode_value(specs[n], [each[n] for each in named]) for n in names}


class CsvSource(RowSource[list[str]]):
    """Rows of a CSV file whose first line names the columns.

    Args:
        file: The file.
        layout: The layout of the call.
    """

    def __init__(self, file: str, layout: Layout) -> None:
        super().__init__(file, layout, max(_count_lines(file) - 1, 0))
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
            rows = csv.reader(stream, strict=True)
            line, number = 1, 0
            try:
                for row in rows:
                    if row and line > 1:
                        number += 1
                        is_complete = len(row) == len(self._header)
                        kept = tuple(row[index] for index in self._kept) if is_complete else ()
                        yield Place(self._file, number, line, kept), row
                    line = rows.line_num + 1
            except csv.Error as failure:
                raise DataError(
                    self._file, f"the file is not valid CSV: {failure}", line=line
                ) from failure

    def _decode(self, row: list[str]) -> dict[str, object]:
        return _decode_cells(self._row_specs, self._assigned, self._header, row)

    def _decode_all(self, rows: Sequence[list[str]]) -> dict[str, object] | None:
        if any(len(row) != len(self._header) for row in rows):
            return None
        values: dict[str, object] = {}
        for each in self._assigned:
            spec = self._layout.specs[each.name]
            if each.name not in self._layout.rows or spec.dtype is None:
                return None
            tensor = _parse_numbers(rows, each.columns, dtype_of(spec))
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
    if not bool(numbers.isfinite().all()):
        return None
    return convert(numbers, dtype)


def _decode_cells(
    specs: Mapping[str, ValueSpec],
    assigned: Iterable[Assignment],
    header: Sequence[str],
    row: Sequence[str],
) -> dict[str, object]:
    if len(row) != len(header):
        text = f"expected {len(header)} columns as in the first line, got {len(row)}"
        raise InputMismatchError((text,))
    values: dict[str, object] = {}
    for each in assigned:
        spec = specs[each.name]
        cells = [_parse(row[index], spec, header[index]) for index in each.columns]
        if each.is_vector:
            values[each.name] = fold(decode_value(spec, cells), spec)
        else:
            values[each.name] = decode_value(spec, cells[0])
    return values


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


def _count_lines(file: str) -> int:
    """Return the number of lines, for the progress display only. Takes 0.3 s per GB."""
    count, last = 0, b"\n"
    with reading(file), Path(file).open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")
