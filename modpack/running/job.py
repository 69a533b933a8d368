"""One run of a package on files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from modpack.core.process import ProgressUnit, advance, phase
from modpack.errors import DataError, ModpackWarning, listed
from modpack.predicting.predictor import Predictor
from modpack.predicting.rows import (
    BadRow,
    Chunk,
    Layout,
    OnError,
    Outputs,
    Place,
    explain,
    layout_of,
    merge,
    run_together,
    split_outputs,
)
from modpack.report.json_output import RunDocument, SkippedRow
from modpack.running.formats import open_source
from modpack.running.inputs import InputFile
from modpack.running.outputs import OutputFile
from modpack.running.summary import OutputSummary


class RunResult(NamedTuple):
    """The result of a run.

    Attributes:
        summary: Names, types, and first values of the outputs.
        skipped: The skipped rows.
        is_single: Whether the run was one call without a dimension of rows.
        device: The device of the inputs.
    """

    summary: OutputSummary
    skipped: list[BadRow]
    is_single: bool
    device: str


def run_package(
    path: str,
    files: Sequence[InputFile],
    output: tuple[str, str] | None,
    *,
    batch_size: int | None,
    on_error: OnError,
    resize: bool,
    columns: Mapping[str, tuple[str, ...]],
    keep: tuple[str, ...],
    **options: Any,
) -> RunResult:
    """Run a package on files, and write the outputs.

    Args:
        path: The package.
        files: The files of inputs.
        output: The file of outputs and its format, or None.
        batch_size: Maximum number of rows in one call; None for the default.
        on_error: Whether to stop at the first bad row, or to skip bad rows.
        resize: Whether to resize images.
        columns: Columns of tables by input. Other inputs find theirs by name.
        keep: Columns of tables that the output contains.
        options: Options of :class:`.Predictor`.

    Raises:
        DataError: If an input or output cannot be used.
        ModpackError: If the package cannot be loaded.
    """
    summary = OutputSummary()
    with ExitStack() as stack:
        written = None
        if output is not None:
            written = OutputFile(*output)  # fails before a long load
            stack.callback(written.discard)
        predictor = stack.enter_context(Predictor(path, **options))
        layout = layout_of(predictor.signature, batch_size)
        layout = layout._replace(columns=columns, keep=keep)
        source = open_source(files, layout, resize=resize)
        is_single = source.is_whole and not layout.rows

        def write(outputs: Outputs) -> None:
            summary.add(outputs)
            if written is not None:
                written.write(outputs)

        with phase("rows", ProgressUnit.ROWS, source.total, is_major=True):
            items = merge(source.chunks(), layout)
            skipped = run_rows(predictor.predict, items, layout, write, on_error)
        if not summary.rows and not skipped:
            raise DataError(listed([each.label for each in files], 3), "there are no rows")
        if written is not None and summary.rows:
            written.finish(is_single)
        return RunResult(summary, skipped, is_single, predictor.device)


def run_rows(
    predict: Callable[[Mapping[str, object]], dict[str, object]],
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
    is_whole = layout.signature.batching == "dependent"

    def refuse(bad: BadRow) -> None:
        if on_error == "stop":
            raise bad.place.error(bad.reason)
        skipped.append(bad)

    def call(values: Mapping[str, object], sizes: Sequence[int]) -> Outputs:
        return split_outputs(predict(values), sum(sizes), layout)

    for item in items:
        if isinstance(item, BadRow):
            refuse(item)
            advance()
            continue
        places, first = item.places, item.places[0]
        name = f"{first.file}: the batch of {len(places)} rows from row {first.row}"
        sizes = [len(places)] if is_whole else [1] * len(places)
        found = run_together(call, item.values, sizes, layout.rows, name, unexplained.append)
        for result, count in found:
            own, places = places[:count], places[count:]
            if isinstance(result, Exception):
                for place in own:
                    refuse(BadRow(place, explain(result)))
            else:
                write(_with_kept(result, own, layout))
            advance(count)
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


def run_document(
    package: str, output: str | None, result: RunResult, seconds: float
) -> RunDocument:
    """Return the JSON document of a run."""
    skipped = (
        SkippedRow(place.file, place.row, place.line, reason) for place, reason in result.skipped
    )
    return RunDocument(
        package,
        output if result.summary.rows else None,
        result.device,
        result.summary.rows,
        tuple(skipped),
        result.summary.facts(result.is_single),
        seconds,
    )
