"""``modpack run``: run a package on files."""

from __future__ import annotations

import contextlib
import csv
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from modpack.cli._command import command
from modpack.cli._options import FILE, PACKAGE, isolated_option, load_options
from modpack.cli._output import collect_warnings, warn, write, write_json
from modpack.cli._running import read_trust, repeat_isolated
from modpack.core.call_signature import DEFAULT_ROWS
from modpack.core.process import handle_sigterm
from modpack.core.text import counted, printable
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.running.job import RunResult

_LISTED_ROWS = 10
_TERMINATED = 143
"""The exit status of a process that SIGTERM ended: 128 + SIGTERM, as in shells."""


@command(
    "run",
    epilog="Exit status: 0 if all rows were run, 1 if rows were skipped, 2 if the command failed; "
    "the output file is then unchanged.",
)
@click.argument("package", metavar="PACKAGE", type=PACKAGE)
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=FILE)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=FILE,
    help="Write the outputs to FILE, in the format of its suffix.  [default: print a summary]",
)
@click.option(
    "--batch-size",
    metavar="N",
    type=click.IntRange(min=1),
    help=f"Run at most N rows in one call.  [default: {DEFAULT_ROWS}, or all if rows influence "
    "each other]",
)
@click.option("--device", metavar="DEVICE", help="Run on DEVICE, for example cuda:0 or cpu.")
@click.option("--compile", is_flag=True, help="Compile the model with torch.compile.")
@click.option(
    "--on-error",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    show_default=True,
    help="Stop at the first bad row, or skip bad rows and list them at the end.",
)
@click.option(
    "--resize", is_flag=True, help="Resize images to the height and width of the call signature."
)
@click.option(
    "--columns",
    metavar="INPUT=COLUMN,...",
    multiple=True,
    help="Read an input from these columns of a table, in this order.",
)
@click.option(
    "--keep",
    metavar="COLUMN",
    multiple=True,
    help="Write this column of a table to the output, too.",
)
@click.option(
    "--engine",
    type=click.Choice(["ray"]),
    help="Run the batches in processes of Ray: on the cluster of RAY_ADDRESS, or a local one.",
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(min=1),
    help="Use N processes of the engine.  [default: one for each CPU, or GPU with --device cuda]",
)
@isolated_option
@click.option(
    "--package",
    "module",
    metavar="NAME",
    help="Choose the object by the first part of its name, PACKAGE/RESOURCE.",
)
@click.option(
    "--resource",
    metavar="NAME",
    help="Choose the object by the second part of its name, PACKAGE/RESOURCE.",
)
@load_options
def run_command(
    package: str,
    inputs: tuple[str, ...],
    output: str | None,
    columns: tuple[str, ...],
    keep: tuple[str, ...],
    engine: str | None,
    workers: int | None,
    isolated: bool,
    module: str | None,
    resource: str | None,
    keys: tuple[str, ...],
    policy: str | None,
    as_json: bool,
    **options: Any,
) -> bool:
    """Run a package's model on files of inputs.

    INPUT is a .npy, .npz, .pt, .safetensors, .json, .jsonl, .csv, or .parquet file, an image, a
    folder or pattern of images, or - for JSON on stdin. modpack joins the rows of several files of
    one format. NAME=FILE gives an input of the call its own file. modpack reads inputs in batches,
    and the output file appears when all rows are done.

    This command executes the package's code. Only use it for packages that you trust.

    \b
    Examples:
      modpack run net.modpack rows.csv
      modpack run net.modpack table.csv --columns x=width,height --keep id -o scores.csv
      modpack run net.modpack part1.jsonl part2.jsonl -o scores.parquet --on-error skip
      modpack run net.modpack image=photos/ scale=scale.npy -o out.npz --device cuda:0
      modpack run net.modpack rows.parquet -o scores.parquet --engine ray --workers 8
      echo '{"x": [[1.0, 2.0]]}' | modpack run net.modpack - -o out.json
    """
    from modpack.running.inputs import format_of, require_other_output, resolve_inputs

    # All arguments are checked before torch is imported, which takes more than a second.
    if (module is None) != (resource is None):
        raise click.UsageError("--package and --resource must be given together.")
    if engine is None and workers is not None:
        raise click.UsageError("--workers requires --engine.")
    if engine is not None and isolated:
        raise click.UsageError("--engine and --isolated cannot be combined.")
    chosen = _parse_columns(columns)
    files = resolve_inputs(inputs)
    target = None if output is None else (output, format_of(output, "output"))
    if output is not None:
        require_other_output(files, package, output)
    trusted = read_trust(policy, keys)
    # Before torch is imported: the other interpreter does the work.
    if isolated:
        # The environment needs the libraries of these formats, too.
        formats = [each.format for each in files]
        if target is not None:
            formats.append(target[1])
        raise Exit(repeat_isolated(package, trusted, options["verify"], formats))
    started = time.monotonic()
    with (
        handle_sigterm(_terminate),
        working(f"Running {package}"),
        collect_warnings() as collected,
    ):
        from modpack.running.job import run_package

        if engine is not None:
            from modpack.integrations.ray_engine import ray_engine

            options["open_engine"] = ray_engine(workers)
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for the report
            result = run_package(
                package,
                files,
                target,
                columns=chosen,
                keep=tuple(dict.fromkeys(keep)),
                package=module,
                resource=resource,
                policy=trusted,
                **options,
            )
    for text in collected:
        warn(text)
    if result.skipped:
        warn(f"skipped {counted(len(result.skipped), 'row')}:")
        lines = [str(each.place.error(each.reason)) for each in result.skipped[:_LISTED_ROWS]]
        if len(result.skipped) > len(lines):
            lines.append(f"and {len(result.skipped) - len(lines)} more; --json lists all")
        for line in lines:
            click.echo(f"  {printable(line)}", err=True)
    if as_json:
        from modpack.running.job import run_document

        write_json(run_document(package, output, result, time.monotonic() - started))
    else:
        write(_format(result, output))
    return bool(result.skipped)


def _parse_columns(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the columns by input. Names with commas are in quotes, as in CSV."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, _, listed = text.partition("=")
        # Column names may contain commas, so lists of them are quoted as in CSV files.
        columns = tuple(next(csv.reader([listed]), ()))
        if not name or not all(columns) or not columns or name in found:
            reason = f"the input {name!r} occurs twice" if name in found else "not INPUT=COLUMN,..."
            raise click.UsageError(f"--columns {text}: {reason}.")
        found[name] = columns
    return found


def _format(result: RunResult, output: str | None) -> str:
    rows = counted(result.summary.rows, "row")
    if output is None:
        text = f"{rows}\n{result.summary.text(result.is_single)}"
    elif not result.summary.rows:
        text = "No file was written: modpack skipped all rows.\n"
    else:
        names: Sequence[str] = [each.name for each in result.summary.facts(result.is_single)]
        text = f"Wrote {output}: {rows} of {', '.join(names)}\n"
    return printable(text, keep="\n")


def _terminate(number: int, frame: object) -> None:
    """End the run with an exception on SIGTERM, so that it removes its temporary files."""
    raise SystemExit(_TERMINATED)
