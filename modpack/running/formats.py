"""The formats of inputs: a source for each file, and several files as one source."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from modpack.errors import DataError, listed
from modpack.predicting.decoding import parse_document
from modpack.predicting.row_sources import JsonSource, open_document
from modpack.predicting.rows import BadRow, Chunk, Layout, Place, Source, merge
from modpack.running.arrays import read_plain
from modpack.running.images import ImageSource
from modpack.running.inputs import FORMATS, IMAGE, STDIN, InputFile, code_of, reading


def open_source(files: Sequence[InputFile], layout: Layout, *, resize: bool = False) -> Source:
    """Open the inputs of a command as one source of rows.

    Args:
        files: The files: all with the name of an input, or none.
        layout: The layout of the call.
        resize: Whether to resize images.

    Raises:
        DataError: If a file cannot be read, or its contents do not fit the call signature.
        ModpackError: If a library is missing.
    """
    known = [spec.name for spec in layout.signature.inputs]
    for name in layout.columns:
        if name not in known:
            inputs = listed(map(repr, known), 10)
            raise DataError("--columns", f"there is no input {name!r}; the inputs are {inputs}")
    named: dict[str, list[InputFile]] = {}
    for file in files:
        # resolve_inputs has refused inputs with and without a name together.
        if file.name is None:
            return _Joined(_sources(files, layout, resize))
        named.setdefault(file.name, []).append(file)
    for name, own in named.items():
        if name not in known:
            inputs = listed(map(repr, known), 10)
            raise DataError(own[0].label, f"there is no input {name!r}; the inputs are {inputs}")
    missing = [s.name for s in layout.signature.inputs if s.required and s.name not in named]
    if missing:
        expected = layout.specs[missing[0]]
        raise DataError(
            files[0].label,
            f"no file was given for the input {missing[0]!r}, which is {expected}",
            hint=f"Add {missing[0]}=FILE.",
        )
    sources: dict[str, Source] = {}
    plain: dict[str, object] = {}
    for name, own in named.items():
        # A plain value has no rows: the document is the value, which all rows have in common.
        if layout.specs[name].type not in ("tensor", "any") and own[0].format == ".json":
            plain[name] = read_plain(own[0].label, _content(own[0]), layout, name)
        else:
            alone = layout.only(name)
            if sources:  # the first file has the columns to keep
                alone = alone._replace(keep=())
            source = _Joined(_sources(own, alone, resize))
            if source.is_whole and layout.rows:
                plain.update(next(source.chunks()).values)  # type: ignore[union-attr]
            else:
                sources[name] = source
    return _Zipped(sources, plain, layout)


def _sources(files: Sequence[InputFile], layout: Layout, resize: bool) -> list[Source]:
    sources: list[Source] = []
    for kind, group in groupby(files, lambda each: each.format):
        if (layout.columns or layout.keep) and not FORMATS[kind].is_table:
            label = next(group).label
            raise DataError(label, "--columns and --keep require a .csv or .parquet file")
        if kind == IMAGE:
            sources.append(ImageSource([each.path for each in group], layout, resize))
        elif kind == ".json":
            sources += [open_document(each.label, layout, _content(each)) for each in group]
        else:
            open_file = code_of(FORMATS[kind].reader)
            sources += [open_file(each.path, layout) for each in group]
    return sources


def open_jsonl(file: str, layout: Layout) -> JsonSource:
    """Open a file with a JSON document on each line. Blank lines are ignored."""

    def rows() -> Iterator[tuple[Place, bytes]]:
        number = 0
        with reading(file), Path(file).open("rb") as stream:
            for line, text in enumerate(stream, 1):
                if row := text.strip():
                    number += 1
                    yield Place(file, number, line), row

    return JsonSource(file, layout, rows(), parse=parse_document)


def _content(file: InputFile) -> bytes:
    with reading(file.label):
        return sys.stdin.buffer.read() if file.path == STDIN else Path(file.path).read_bytes()


class _Joined:
    """Several sources, one after the other."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        totals = [source.total for source in sources]
        known = [total for total in totals if total is not None]
        self.total: int | None = sum(known) if len(known) == len(totals) else None
        self.is_whole = len(sources) == 1 and sources[0].is_whole

    def chunks(self) -> Iterator[Chunk | BadRow]:
        for source in self._sources:
            yield from source.chunks()


class _Zipped:
    """One source for each input. Their rows belong together.

    Args:
        sources: The sources by input.
        plain: Values of other inputs, which all rows have in common.
        layout: The layout of the call.
    """

    def __init__(
        self, sources: Mapping[str, Source], plain: Mapping[str, object], layout: Layout
    ) -> None:
        self._sources, self._plain, self._layout = sources, plain, layout
        self.total: int | None = next((s.total for s in sources.values()), 1)
        self.is_whole = all(source.is_whole for source in sources.values())

    def chunks(self) -> Iterator[Chunk | BadRow]:
        if not self._sources:
            raise DataError(
                "inputs", "no input has rows", hint="Pass one .json file with all inputs."
            )
        layout = self._layout
        varying = {
            size
            for spec in layout.signature.inputs
            for size in (spec.shape or ())
            if type(size) is str
        }
        if varying - {layout.signature.batch}:
            layout = layout._replace(size=1)  # rows of different lengths are not joined
        # All inputs are cut into batches of the same size, so that rows of one call belong
        # together.
        streams = {
            name: merge(source.chunks(), layout.only(name))
            for name, source in self._sources.items()
        }
        while True:
            parts = {name: _next(stream) for name, stream in streams.items()}
            chunks = [part for part in parts.values() if part is not None]
            if not chunks:
                return
            counts = {name: len(part.places) if part else 0 for name, part in parts.items()}
            if len(set(counts.values())) > 1:
                shown = ", ".join(f"{count} in {name!r}" for name, count in counts.items())
                reason = f"the inputs have different numbers of rows: {shown}"
                raise chunks[0].places[0].error(reason)
            values = {name: value for part in chunks for name, value in part.values.items()}
            yield Chunk({**values, **self._plain}, chunks[0].places)


def _next(stream: Iterator[Chunk | BadRow]) -> Chunk | None:
    """Return the next rows of one input.

    Raises:
        DataError: If a row is bad. It cannot be skipped without the rows of the other inputs.
    """
    item = next(stream, None)
    if isinstance(item, BadRow):
        raise item.place.error(item.reason)
    return item
