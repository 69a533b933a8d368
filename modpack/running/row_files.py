"""Inputs row by row: what all files have in common, lists in .json files, and .jsonl files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from modpack.errors import InputMismatchError
from modpack.predicting.rows import BadRow, Chunk, Layout, Place, row_chunk, row_spec, take
from modpack.predicting.values import check_inputs, join_problems
from modpack.running.decoding import decode_named, decode_value, name_json, parse_document
from modpack.running.inputs import reading

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
        return _decode_rows(self._layout, rows)


class JsonlSource(RowSource[bytes]):
    """Rows of a file with a JSON document on each line. Blank lines are ignored.

    Args:
        file: The file.
        layout: The layout of the call.
    """

    def __init__(self, file: str, layout: Layout) -> None:
        super().__init__(file, layout)

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
