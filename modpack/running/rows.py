"""Inputs row by row: lists in .json files, .jsonl files, and .csv files."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from modpack.core.call_signature import ValueSpec
from modpack.errors import DataError, InputMismatchError
from modpack.running.arrays import name_json
from modpack.running.batches import BadRow, Chunk, Layout, Place, row_chunk, row_spec
from modpack.running.decoding import decode_value, parse_json
from modpack.running.inputs import reading
from modpack.running.tables import Assignment, assign_columns, fold

_BLOCK_BYTES: Final = 1 << 20


class RowSource:
    """Rows that are decoded one by one.

    Args:
        file: The file, for messages.
        layout: The layout of the call.
        rows: Returns the rows, each with its line and a function that decodes it.
        total: Number of rows, if known.
    """

    is_whole = False

    def __init__(
        self,
        file: str,
        layout: Layout,
        rows: Callable[[], Iterable[tuple[int | None, Callable[[], dict[str, object]]]]],
        total: int | None,
    ) -> None:
        self._file, self._layout, self._rows, self.total = file, layout, rows, total

    def chunks(self) -> Iterator[Chunk | BadRow]:
        for number, (line, decode) in enumerate(self._rows(), 1):
            place = Place(self._file, number, line)
            try:
                yield row_chunk(self._layout, decode(), place)
            except InputMismatchError as failure:
                yield BadRow(place, "; ".join(failure.problems))


def decode_row(layout: Layout, data: object) -> dict[str, object]:
    """Return the values of a row in JSON.

    Raises:
        InputMismatchError: If a value cannot be converted. The error lists all such values.
    """
    specs, values = layout.specs, dict[str, object]()
    problems: list[str] = []
    for name, item in name_json(layout.signature, data).items():
        try:
            values[name] = decode_value(row_spec(layout, name), item) if name in specs else item
        except InputMismatchError as failure:
            problems += failure.problems
    if problems:
        raise InputMismatchError(tuple(problems))
    return values


def open_list(file: str, layout: Layout, rows: Sequence[object]) -> RowSource:
    """Return the rows of a list in JSON."""

    def read() -> Iterator[tuple[None, Callable[[], dict[str, object]]]]:
        for row in rows:
            yield None, lambda row=row: decode_row(layout, row)  # type: ignore[misc]

    return RowSource(file, layout, read, len(rows))


def open_jsonl(file: str, layout: Layout) -> RowSource:
    """Open a file with a JSON document on each line. Blank lines are ignored."""

    def read() -> Iterator[tuple[int, Callable[[], dict[str, object]]]]:
        with reading(file), Path(file).open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if text := line.strip():
                    yield number, lambda text=text: decode_row(layout, parse_json(text))  # type: ignore[misc]

    return RowSource(file, layout, read, _count_lines(file))


def open_csv(file: str, layout: Layout) -> RowSource:
    """Open a CSV file whose first line names the columns."""
    with reading(file), Path(file).open(encoding="utf-8-sig", newline="") as stream:
        header = next(csv.reader(stream), None)
    if not header:
        raise DataError(file, "the file has no line with names of columns", line=1)
    assigned = assign_columns(file, layout, header)
    csv.field_size_limit(min(sys.maxsize, (1 << 31) - 1))  # the default is 128 KiB

    def read() -> Iterator[tuple[int, Callable[[], dict[str, object]]]]:
        with reading(file), Path(file).open(encoding="utf-8-sig", newline="") as stream:
            rows = csv.reader(stream, strict=True)
            line = 1
            try:
                for row in rows:
                    if row and line > 1:
                        yield line, lambda row=row: _decode_cells(layout, assigned, header, row)  # type: ignore[misc]
                    line = rows.line_num + 1
            except csv.Error as failure:
                raise DataError(file, f"is not valid CSV: {failure}", line=line) from failure

    return RowSource(file, layout, read, max(_count_lines(file) - 1, 0))


def _decode_cells(
    layout: Layout, assigned: Iterable[Assignment], header: Sequence[str], row: Sequence[str]
) -> dict[str, object]:
    if len(row) != len(header):
        text = f"expected {len(header)} columns as in the first line, got {len(row)}"
        raise InputMismatchError((text,))
    values: dict[str, object] = {}
    for each in assigned:
        spec = row_spec(layout, each.name)
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
