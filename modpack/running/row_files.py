"""Rows of .jsonl files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from modpack.predicting.decoding import decode_named, parse_document
from modpack.predicting.row_sources import RowSource, decode_rows
from modpack.predicting.rows import Layout, Place
from modpack.running.inputs import reading


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
        return decode_rows(self._layout, [parse_document(row) for row in rows])
