"""Rows of inputs: gathered into batches, run, and reported if they fail."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

import torch

from modpack.core.process import advance
from modpack.errors import DataError, InputMismatchError, ModpackError, ModpackWarning
from modpack.loading.objects import packaged_location
from modpack.running.inputs import join_problems
from modpack.running.values import check_inputs

if TYPE_CHECKING:
    from modpack.core.call_signature import CallSignature, ValueSpec

OnError: TypeAlias = Literal["stop", "skip"]
DEFAULT_ROWS = 32
"""Rows of a batch unless the user chooses another number."""


class Place(NamedTuple):
    """The place of a row.

    Attributes:
        file: File of the row, as the user named it.
        row: Number of the row in the file, from 1.
        line: Line of a text file where the row starts, from 1. None for other files.
        kept: Its values of the columns :attr:`Layout.keep`.
    """

    file: str
    row: int
    line: int | None = None
    kept: tuple[object, ...] = ()

    def error(self, reason: str) -> DataError:
        """Return the error of this row."""
        return DataError(self.file, reason, row=self.row, line=self.line)


class Chunk(NamedTuple):
    """Consecutive rows.

    Attributes:
        values: The values of the call. Values of :attr:`Layout.rows` have a first dimension of
            rows; the others belong to all rows.
        places: Places of the rows.
    """

    values: Mapping[str, object]
    places: Sequence[Place]


class BadRow(NamedTuple):
    """A row that cannot be used.

    Attributes:
        place: Its place.
        reason: The problem.
    """

    place: Place
    reason: str


class Layout(NamedTuple):
    """The relation of rows to the values of a call.

    Attributes:
        signature: The call signature.
        rows: Inputs whose first dimension is that of the rows. Empty if each row is one call.
        size: Maximum number of rows in one call. None for all.
        columns: Columns of tables by input, where the user has chosen them.
        keep: Columns of tables that the output contains.
    """

    signature: CallSignature
    rows: frozenset[str]
    size: int | None = DEFAULT_ROWS
    columns: Mapping[str, tuple[str, ...]] = {}
    keep: tuple[str, ...] = ()

    @property
    def specs(self) -> dict[str, ValueSpec]:
        """Specs of the inputs by name."""
        return {spec.name: spec for spec in self.signature.inputs}

    def is_row_value(self, name: str, value: object) -> bool:
        """Return whether a value has a first dimension of rows."""
        return name in self.rows and isinstance(value, torch.Tensor) and value.dim() > 0

    def only(self, name: str) -> Layout:
        """Return the layout of a single input."""
        spec = self.specs[name]
        signature = self.signature._replace(inputs=(spec,))
        columns = {key: value for key, value in self.columns.items() if key == name}
        return self._replace(signature=signature, rows=self.rows & {name}, columns=columns)


def layout_of(signature: CallSignature, size: int | None) -> Layout:
    """Return the layout of a call.

    Args:
        signature: The call signature.
        size: Rows of a batch; None for the default. The default of a call whose rows influence
            each other is a single batch.
    """
    batch = signature.batch
    rows = frozenset(
        spec.name
        for spec in signature.inputs
        if (batch is not None and spec.shape and spec.shape[0] == batch)
        or (batch is None and spec.type == "any" and size is not None)
    )
    default = None if signature.batching == "dependent" else DEFAULT_ROWS
    return Layout(signature, rows, size if size is not None else default)


class Source(Protocol):
    """An input."""

    total: int | None
    """Number of rows, if known; it may be an estimate."""
    is_whole: bool
    """Whether the input is exactly one call without a dimension of rows."""

    def chunks(self) -> Iterator[Chunk | BadRow]:
        """Yield the rows in order, in chunks of at most :attr:`Layout.size` rows."""


def merge(items: Iterable[Chunk | BadRow], layout: Layout) -> Iterator[Chunk | BadRow]:
    """Join small chunks into batches.

    Rows that one call cannot take together, because other dimensions or plain values differ, start
    a new batch.
    """
    if not layout.rows:
        yield from items
        return
    held: list[Chunk] = []
    count, kind = 0, None
    for item in items:
        if isinstance(item, BadRow):
            yield item
            continue
        rows, own = len(item.places), _kind(item.values, layout)
        if held and (own != kind or (layout.size is not None and count + rows > layout.size)):
            yield _join(held, layout)
            held, count = [], 0
        held.append(item)
        count, kind = count + rows, own
        if count == layout.size:
            yield _join(held, layout)
            held, count = [], 0
    if held:
        yield _join(held, layout)


def _kind(values: Mapping[str, object], layout: Layout) -> list[object]:
    """Return what two chunks must have in common."""
    return [
        (name, value.shape[1:])
        if isinstance(value, torch.Tensor) and layout.is_row_value(name, value)
        else (name, id(value) if isinstance(value, torch.Tensor) else (type(value), value))
        for name, value in values.items()
    ]


def _join(held: Sequence[Chunk], layout: Layout) -> Chunk:
    if len(held) == 1:
        return held[0]
    values = dict(held[0].values)
    for name, value in values.items():
        if layout.is_row_value(name, value):
            values[name] = torch.cat([each.values[name] for each in held])  # type: ignore[misc]
    return Chunk(values, [place for each in held for place in each.places])


def row_chunk(layout: Layout, values: dict[str, object], place: Place) -> Chunk:
    """Return one row as a chunk.

    Args:
        layout: The layout of the call.
        values: The values of the row, without a dimension of rows.
        place: Its place.

    Raises:
        InputMismatchError: If a value does not fit the call signature.
    """
    named = {
        name: value[None] if name in layout.rows and isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    }
    check_inputs(layout.signature, named)
    return Chunk(named, [place])


def row_spec(layout: Layout, name: str) -> ValueSpec:
    """Return the spec of a value in one row: without the dimension of rows."""
    spec = layout.specs[name]
    if spec.shape and name in layout.rows:
        return spec._replace(shape=spec.shape[1:])
    return spec


class Outputs(NamedTuple):
    """Outputs of some rows.

    Attributes:
        rows: Outputs with a value for each row: tensors with a first dimension of rows, and lists.
        whole: Outputs that belong to the call as a whole.
        row_count: Number of rows.
    """

    rows: Mapping[str, torch.Tensor | list[object]]
    whole: Mapping[str, object]
    row_count: int


Predict: TypeAlias = Callable[[Mapping[str, object]], dict[str, object]]


def run_rows(
    predict: Predict,
    items: Iterable[Chunk | BadRow],
    layout: Layout,
    write: Callable[[Outputs], None],
    on_error: OnError,
) -> list[BadRow]:
    """Run all rows and write their outputs.

    A batch that fails is repeated row by row, unless its rows influence each other. A warning
    reports exceptions of batches that no row of the batch raises alone.

    Args:
        predict: Calls the model.
        items: The batches.
        layout: The layout of the call.
        write: Receives the outputs in order.
        on_error: Whether to stop at the first bad row, or to skip bad rows.

    Returns:
        The skipped rows.

    Raises:
        DataError: If a row is bad, and ``on_error`` is ``"stop"``.
    """
    skipped: list[BadRow] = []
    unexplained: list[str] = []

    def refuse(bad: BadRow) -> None:
        if on_error == "stop":
            raise bad.place.error(bad.reason)
        skipped.append(bad)

    for item in items:
        if isinstance(item, BadRow):
            refuse(item)
            advance()
            continue
        for chunk, result in _results(predict, item, layout, unexplained):
            if isinstance(result, Exception):
                for place in chunk.places:
                    refuse(BadRow(place, explain(result)))
            else:
                write(_with_kept(split_outputs(result, len(chunk.places), layout), chunk, layout))
            advance(len(chunk.places))
    if unexplained:
        more = f" (and {len(unexplained) - 1} more)" if len(unexplained) > 1 else ""
        warnings.warn(
            f"{unexplained[0]}{more}. Its rows were run one by one, without this exception.",
            ModpackWarning,
            stacklevel=2,
        )
    # A row that cannot be read is found before earlier rows of its batch are run.
    files = dict.fromkeys(bad.place.file for bad in skipped)
    order = {file: number for number, file in enumerate(files)}
    return sorted(skipped, key=lambda bad: (order[bad.place.file], bad.place.row))


def _results(
    predict: Predict, chunk: Chunk, layout: Layout, unexplained: list[str]
) -> Iterator[tuple[Chunk, dict[str, object] | Exception]]:
    """Yield the outputs or the exception of a chunk, or of each of its rows if it fails.

    Exceptions of a kind that no row raises alone are added to ``unexplained``.
    """
    try:
        result: dict[str, object] | Exception = predict(chunk.values)
    except Exception as failure:  # the model may raise anything
        result = failure
    if (
        not isinstance(result, Exception)
        or not layout.rows
        or len(chunk.places) == 1
        or layout.signature.batching == "dependent"
    ):
        yield chunk, result
    else:
        kinds = set()
        for index in range(len(chunk.places)):
            single = take(chunk, index, index + 1, layout)
            for part, alone in _results(predict, single, layout, unexplained):
                kinds.add(_kind_of(alone))
                yield part, alone
        if _kind_of(result) not in kinds:
            first = chunk.places[0]
            unexplained.append(
                f"{first.file}: the batch of {len(chunk.places)} rows from row {first.row} failed: "
                f"{explain(result)}"
            )


def _kind_of(result: object) -> object:
    """Return the type and place of an exception; its text may differ between rows and batches."""
    place = packaged_location(result) if isinstance(result, Exception) else None
    return type(result), place


def take(chunk: Chunk, start: int, stop: int, layout: Layout) -> Chunk:
    """Return some rows of a chunk."""
    values = {
        name: value[start:stop]  # type: ignore[index]
        if layout.is_row_value(name, value)
        else value
        for name, value in chunk.values.items()
    }
    return Chunk(values, chunk.places[start:stop])


def split_outputs(outputs: Mapping[str, object], count: int, layout: Layout) -> Outputs:
    """Separate the outputs that have a value for each row from the others."""
    if not layout.rows:  # the call is the row
        single: dict[str, torch.Tensor | list[object]] = {
            name: value[None] if isinstance(value, torch.Tensor) else [value]
            for name, value in outputs.items()
        }
        return Outputs(single, {}, count)
    known = {spec.name: spec.shape for spec in layout.signature.outputs}
    rows: dict[str, torch.Tensor | list[object]] = {}
    whole: dict[str, object] = {}
    for name, value in outputs.items():
        shape, batch = known.get(name), layout.signature.batch
        has_rows = isinstance(value, torch.Tensor) and value.shape[:1] == (count,)
        if has_rows and (batch is None or not shape or shape[0] == batch):
            rows[name] = value  # type: ignore[assignment]
        else:
            whole[name] = value
    return Outputs(rows, whole, count)


def _with_kept(outputs: Outputs, chunk: Chunk, layout: Layout) -> Outputs:
    """Add the columns that the output contains.

    Raises:
        DataError: If an output has the name of such a column.
    """
    rows: dict[str, torch.Tensor | list[object]] = {}
    for index, name in enumerate(layout.keep):
        if name in outputs.rows or name in outputs.whole:
            raise DataError(
                chunk.places[0].file,
                f"the column {name!r} cannot be kept, because an output has this name",
                hint="Rename the column.",
            )
        rows[name] = [place.kept[index] for place in chunk.places]
    return outputs._replace(rows={**rows, **outputs.rows}) if rows else outputs


def explain(failure: Exception) -> str:
    """Return the reason of a failed call, on one line."""
    if isinstance(failure, InputMismatchError):
        return join_problems(failure)
    text = " ".join(str(failure).split())
    if isinstance(failure, ModpackError):
        return text
    place = packaged_location(failure)
    location = "" if place is None else f" ({place[0]}, line {place[1]})"
    return f"the model raised {type(failure).__name__}: {text:.500}{location}"
