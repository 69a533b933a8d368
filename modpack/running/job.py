"""One run of a package on files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from modpack.core.call_signature import CallSignature
from modpack.core.process import ProgressUnit, phase
from modpack.errors import DataError, listed
from modpack.predicting.predictor import Predictor
from modpack.predicting.rows import (
    BadRow,
    Chunk,
    Layout,
    OnError,
    Outputs,
    RanItem,
    layout_of,
    merge,
    run_batches,
    write_rows,
)
from modpack.report.json_output import RunDocument, SkippedRow
from modpack.running.formats import open_source
from modpack.running.inputs import InputFile
from modpack.running.outputs import open_writer
from modpack.running.summary import OutputSummary


class Engine(NamedTuple):
    """A loaded model that runs batches, in this process or in others.

    Attributes:
        signature: The call signature.
        device: The device of the inputs.
        run: Runs batches and yields each with its results, in order.
    """

    signature: CallSignature
    device: str
    run: Callable[[Iterable[Chunk | BadRow], Layout], Iterable[RanItem]]


OpenEngine: TypeAlias = Callable[[str, Mapping[str, Any]], AbstractContextManager[Engine]]
"""Loads a package with options of :class:`.Predictor`, and returns a context with its engine."""


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
    open_engine: OpenEngine | None = None,
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
        open_engine: Loads the package in other processes. None loads it in this one.
        options: Options of :class:`.Predictor`.

    Raises:
        DataError: If an input or output cannot be used.
        ModpackError: If the package cannot be loaded.
    """
    summary = OutputSummary()
    with ExitStack() as stack:
        written = None
        if output is not None:
            written = open_writer(*output)  # fails before a long load
            stack.callback(written.discard)
        if open_engine is None:
            predictor = stack.enter_context(Predictor(path, **options))
            run = partial(run_batches, predictor.predict)
            engine = Engine(predictor.signature, predictor.device, run)
        else:
            engine = stack.enter_context(open_engine(path, options))
        layout = layout_of(engine.signature, batch_size)
        layout = layout._replace(columns=columns, keep=keep)
        source = open_source(files, layout, resize=resize)
        is_single = source.is_whole and not layout.rows

        def write(outputs: Outputs) -> None:
            summary.add(outputs)
            if written is not None:
                written.write(outputs)

        with phase("rows", ProgressUnit.ROWS, source.total, is_major=True):
            items = merge(source.chunks(), layout)
            skipped = write_rows(engine.run(items, layout), layout, write, on_error)
        if not summary.rows and not skipped:
            raise DataError(listed([each.label for each in files], 3), "there are no rows")
        # If all rows were skipped, an existing file stays as it is.
        if written is not None and summary.rows:
            written.publish(is_single)
        return RunResult(summary, skipped, is_single, engine.device)


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
