"""Rows of inputs and requests: joined, run together, split, and run alone if that fails."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import torch

from modpack.core.call_signature import DEFAULT_ROWS, CallSignature, ValueSpec
from modpack.core.process import advance
from modpack.core.text import counted
from modpack.errors import DataError, InputMismatchError, ModpackError, ModpackWarning
from modpack.loading.objects import packaged_location
from modpack.predicting.values import CallForm, describe, join_problems

OnError: TypeAlias = Literal["stop", "skip"]


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
        form: The call signature, prepared for the checks of many rows.
        rows: Inputs whose first dimension is that of the rows. Empty if each row is one call.
        size: Maximum number of rows in one call. None for all.
        columns: Columns of tables by input, where the user has chosen them.
        keep: Columns of tables that the output contains.
    """

    form: CallForm
    rows: frozenset[str]
    size: int | None = DEFAULT_ROWS
    columns: Mapping[str, tuple[str, ...]] = {}
    keep: tuple[str, ...] = ()

    @property
    def signature(self) -> CallSignature:
        """The call signature."""
        return self.form.signature

    @property
    def specs(self) -> dict[str, ValueSpec]:
        """Specs of the inputs by name."""
        return self.form.specs

    def only(self, name: str) -> Layout:
        """Return the layout of a single input."""
        spec = self.specs[name]
        form = CallForm(self.signature._replace(inputs=(spec,)))
        columns = {key: value for key, value in self.columns.items() if key == name}
        return self._replace(form=form, rows=self.rows & {name}, columns=columns)


def layout_of(signature: CallSignature, size: int | None) -> Layout:
    """Return the layout of a call.

    Args:
        signature: The call signature.
        size: Rows of a batch; None for the default. The default of a call whose rows influence
            each other is a single batch.
    """
    batch = signature.batch
    # Without a call signature, rows are joined only if the user asks for batches.
    rows = frozenset(
        spec.name
        for spec in signature.inputs
        if (batch is not None and spec.shape and spec.shape[0] == batch)
        or (batch is None and spec.type == "any" and size is not None)
    )
    default = None if signature.batching == "dependent" else DEFAULT_ROWS
    return Layout(CallForm(signature), rows, size if size is not None else default)


class Source(Protocol):
    """An input."""

    total: int | None
    """Number of rows, if known before they are read."""
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
    count, key = 0, None
    for item in items:
        if isinstance(item, BadRow):
            # Ahead of rows that are held, so run_rows sorts skipped rows at its end.
            yield item
            continue
        rows, own = len(item.places), joint_key(item.values, layout.rows)
        if held and (own != key or (layout.size is not None and count + rows > layout.size)):
            yield _join_chunks(held, layout)
            held, count = [], 0
        held.append(item)
        count, key = count + rows, own
        if count == layout.size:
            yield _join_chunks(held, layout)
            held, count = [], 0
    if held:
        yield _join_chunks(held, layout)


def _join_chunks(held: Sequence[Chunk], layout: Layout) -> Chunk:
    values = join([each.values for each in held], layout.rows)
    return Chunk(values, [place for each in held for place in each.places])


def joint_key(values: Mapping[str, object], rows: Container[str]) -> tuple[object, ...]:
    """Return a key that is equal for values that one call can take together.

    Args:
        values: The values of a call by name.
        rows: Names of the values that have a first dimension of rows.
    """
    return tuple(
        # Without rows, only the same tensor: comparing contents takes as long as a call.
        (name, value.shape[1:] if name in rows and value.dim() else id(value))
        if isinstance(value, torch.Tensor)
        else (name, repr(value))
        for name, value in sorted(values.items())
    )


def join(parts: Sequence[Mapping[str, object]], rows: Container[str]) -> Mapping[str, object]:
    """Return values with the rows of all parts, whose :func:`joint_key` is the same."""
    first = parts[0]
    if len(parts) == 1:
        return first
    return {
        name: torch.cat([part[name] for part in parts])  # type: ignore[misc]
        if _has_rows(name, value, rows)
        else value
        for name, value in first.items()
    }


def take(
    values: Mapping[str, object], start: int, stop: int, rows: Container[str]
) -> dict[str, object]:
    """Return values with some of their rows."""
    return {
        name: value[start:stop] if _has_rows(name, value, rows) else value  # type: ignore[index]
        for name, value in values.items()
    }


def split(
    values: Mapping[str, object], sizes: Iterable[int], rows: Container[str]
) -> Iterator[dict[str, object]]:
    """Yield the values of each part."""
    start = 0
    for size in sizes:
        yield take(values, start, start + size, rows)
        start += size


def count_rows(values: Mapping[str, object], rows: Container[str]) -> int | None:
    """Return the number of rows, or None if no value has rows."""
    for name, value in values.items():
        if _has_rows(name, value, rows):
            return len(value)  # type: ignore[arg-type]
    return None


def _has_rows(name: str, value: object, rows: Container[str]) -> bool:
    return name in rows and isinstance(value, torch.Tensor) and value.dim() > 0


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
    layout.form.check(named)
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


_Result = TypeVar("_Result")


def run_together(
    call: Callable[[Mapping[str, object], Sequence[int]], _Result],
    values: Mapping[str, object],
    sizes: Sequence[int],
    rows: Container[str],
    name: str,
    report: Callable[[str], None],
) -> Iterator[tuple[_Result | Exception, int]]:
    """Make one call for several parts, such as rows or requests; if it fails, one for each part.

    Args:
        call: Calls the model. Its arguments are the values and the sizes of their parts.
        values: The values of all parts.
        sizes: Number of rows of each part.
        rows: Names of the values that have a first dimension of rows.
        name: The parts together, for the report.
        report: Receives the problem of the joint call, unless a part has it alone, too.

    Yields:
        Results or exceptions, each with its number of rows.
    """
    try:
        result: _Result | Exception = call(values, sizes)
    except Exception as failure:  # the model may raise anything
        result = failure
    if not isinstance(result, Exception) or len(sizes) == 1:
        yield result, sum(sizes)
        return
    # Not by halves, which would need fewer calls for a single bad row: the exception of a half says
    # nothing about a row.
    kinds = set()
    for part, size in zip(split(values, sizes, rows), sizes, strict=True):
        for alone, count in run_together(call, part, [size], rows, name, report):
            kinds.add(_kind_of(alone))
            yield alone, count
    if _kind_of(result) not in kinds:
        report(f"{name} failed: {explain(result)}")


RanBatch: TypeAlias = "tuple[Outputs | str, int]"
"""Outputs, or the reason why there are none, and their number of rows."""

RanItem: TypeAlias = "tuple[Chunk | BadRow, Iterable[RanBatch], list[str]]"
"""A batch, its results, and the exceptions of joint calls that none of its rows raises alone. A row
that cannot be read has no results."""


def batch_name(chunk: Chunk) -> str:
    """Return the name of a batch for messages."""
    first = chunk.places[0]
    return f"{first.file}: the batch of {len(chunk.places)} rows from row {first.row}"


def run_batch(
    predict: Callable[[Mapping[str, object]], dict[str, object]],
    values: Mapping[str, object],
    count: int,
    layout: Layout,
    name: str,
    unexplained: list[str],
) -> Iterator[RanBatch]:
    """Run a batch. If it fails, run it row by row, unless its rows influence each other.

    Args:
        predict: Calls the model.
        values: The values of the rows.
        count: Number of rows.
        layout: The layout of the call.
        name: The batch, for messages.
        unexplained: Receives the exception of the batch, unless a row raises it alone, too.
    """

    def call(values: Mapping[str, object], sizes: Sequence[int]) -> Outputs:
        return split_outputs(predict(values), sum(sizes), layout)

    sizes = [count] if layout.signature.batching == "dependent" else [1] * count
    for result, rows in run_together(call, values, sizes, layout.rows, name, unexplained.append):
        yield explain(result) if isinstance(result, Exception) else result, rows


def run_batches(
    predict: Callable[[Mapping[str, object]], dict[str, object]],
    items: Iterable[Chunk | BadRow],
    layout: Layout,
) -> Iterator[RanItem]:
    """Run batches in this process, one after the other."""
    for item in items:
        problems: list[str] = []
        if isinstance(item, BadRow):
            yield item, (), problems
        else:
            count, name = len(item.places), batch_name(item)
            yield item, run_batch(predict, item.values, count, layout, name, problems), problems


def run_rows(
    predict: Callable[[Mapping[str, object]], dict[str, object]],
    items: Iterable[Chunk | BadRow],
    layout: Layout,
    write: Callable[[Outputs], None],
    on_error: OnError,
) -> list[BadRow]:
    """Run all rows in this process and write their outputs; see :func:`write_rows`.

    Args:
        predict: Calls the model.
        items: The batches.
        layout: The layout of the call.
        write: Receives the outputs in order.
        on_error: Whether to stop at the first bad row, or to skip bad rows.
    """
    return write_rows(run_batches(predict, items, layout), layout, write, on_error)


def write_rows(
    ran: Iterable[RanItem],
    layout: Layout,
    write: Callable[[Outputs], None],
    on_error: OnError,
) -> list[BadRow]:
    """Write the outputs of rows.

    A warning reports exceptions of batches that no row of the batch raises alone.

    Args:
        ran: The batches with their results, in order.
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

    for item, results, problems in ran:
        if isinstance(item, BadRow):
            refuse(item)
            advance()
            continue
        places = item.places
        for result, count in results:
            own, places = places[:count], places[count:]
            if isinstance(result, str):
                for place in own:
                    refuse(BadRow(place, result))
            else:
                write(_with_kept(result, own, layout))
            advance(count)
        unexplained += problems  # known when all results are
    if unexplained:
        more = f" (and {len(unexplained) - 1} more)" if len(unexplained) > 1 else ""
        warnings.warn(
            f"{unexplained[0]}{more}. Its rows were run one by one, without this exception.",
            ModpackWarning,
            stacklevel=3,
        )
    # A row that cannot be read is found before earlier rows of its batch are run.
    files = dict.fromkeys(bad.place.file for bad in skipped)
    order = {file: number for number, file in enumerate(files)}
    return sorted(skipped, key=lambda bad: (order[bad.place.file], bad.place.row))


def _with_kept(outputs: Outputs, places: Sequence[Place], layout: Layout) -> Outputs:
    """Add the columns that the output contains.

    Raises:
        DataError: If an output has the name of such a column.
    """
    rows: dict[str, torch.Tensor | list[object]] = {}
    for index, name in enumerate(layout.keep):
        if name in outputs.rows or name in outputs.whole:
            raise DataError(
                places[0].file,
                f"the column {name!r} cannot be kept, because an output has this name",
                hint="Rename the column.",
            )
        rows[name] = [place.kept[index] for place in places]
    return outputs._replace(rows={**rows, **outputs.rows}) if rows else outputs


def _kind_of(result: object) -> object:
    """Return the type and place of an exception; its text may differ between rows and batches."""
    place = packaged_location(result) if isinstance(result, Exception) else None
    return type(result), place


def split_outputs(outputs: Mapping[str, object], count: int, layout: Layout) -> Outputs:
    """Separate the outputs that have a value for each row from the others.

    Raises:
        ModpackError: If the call signature says that an output has a value for each row, and it
            does not.
    """
    if not layout.rows:  # the call is the row
        single: dict[str, torch.Tensor | list[object]] = {
            name: value[None] if isinstance(value, torch.Tensor) else [value]
            for name, value in outputs.items()
        }
        return Outputs(single, {}, count)
    batch = layout.signature.batch
    known = {spec.name: spec.shape for spec in layout.signature.outputs}
    rows: dict[str, torch.Tensor | list[object]] = {}
    whole: dict[str, object] = {}
    for name, value in outputs.items():
        shape = known.get(name) or ()
        is_described = batch is not None and shape[:1] == (batch,)
        # A size may equal the number of rows by chance, so the call signature decides if it can.
        has_rows = isinstance(value, torch.Tensor) and value.shape[:1] == (count,)
        if has_rows and (batch is None or not shape or is_described):
            rows[name] = value  # type: ignore[assignment]
        elif is_described and layout.signature.batching == "independent":
            raise ModpackError(
                f"the output {name!r} is {describe(value)}, although the call has "
                f"{counted(count, 'row')}"
            )
        else:
            whole[name] = value
    return Outputs(rows, whole, count)


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
