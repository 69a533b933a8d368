"""Output of the commands: text, JSON, files, and warnings."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modpack.core.text import printable
from modpack.errors import ModpackWarning

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PLAIN_WIDTH = 120
"""Columns of output that does not go to a terminal."""


def make_console() -> Console:
    """Return a console on stdout, with colors at a terminal only."""
    from rich.console import Console

    # Output in a pipe must not depend on the width of the terminal that runs the pipe.
    is_sized = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(
        file=sys.stdout, width=None if is_sized else _PLAIN_WIDTH, highlight=False, soft_wrap=False
    )


def show(content: RenderableType) -> None:
    """Render content to stdout."""
    console = make_console()
    with console.capture() as captured:
        # Captured first: a closed pipe then interrupts no rendering.
        console.print(content, crop=False)
    write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def write(content: str | bytes) -> None:
    """Write text or bytes to stdout.

    A reader that closes the pipe early (``| head``) does not change the exit status.
    """
    try:
        click.echo(content, nl=False, color=True)
    except BrokenPipeError:
        discard_stdout()


def write_rows(*rows: tuple[str, str]) -> None:
    """Write lines of a label and a value to stdout. The values may come from a package."""
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        write(f"{label + ':':{width + 1}} {printable(value)}\n")


def write_json(document: object) -> None:
    """Write a document to stdout, starting with its schema number."""
    from modpack.report.json_output import dumps

    write(dumps(document))


def write_file(path: Path, text: str) -> None:
    """Replace a file atomically, or write to a device.

    Raises:
        TargetError: If the file cannot be written. The previous file is unchanged.
        OSError: If the device cannot be written.
    """
    from modpack.writing.target import write_atomically

    # A device such as /dev/stdout cannot be replaced by a rename.
    if path.exists() and not path.is_file():
        path.write_bytes(text.encode())
    else:
        write_atomically(path, text.encode())


def require_other_file(file: str, output: Path) -> None:
    """Check that writing the output does not overwrite the package.

    Raises:
        click.UsageError: If it would.
    """
    if output.exists() and Path(file).exists() and output.samefile(file):
        raise click.UsageError(f"--output {output} is the package. Pass another file.")


def warn(text: str) -> None:
    """Print a warning to stderr."""
    click.secho(f"Warning: {text}", err=True, fg="yellow")


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Collect modpack's warnings; all others are shown as usual."""
    collected: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", ModpackWarning)
        # Plans and reports show modpack's own warnings, which would else appear twice.
        show_warning = warnings.showwarning

        def collect(message: Warning | str, category: type[Warning], *location: object) -> None:
            if issubclass(category, ModpackWarning):
                collected.append(str(message))
            else:
                show_warning(message, category, *location)  # type: ignore[arg-type]

        warnings.showwarning = collect  # type: ignore[assignment]
        yield collected


def discard_stdout() -> None:
    """Redirect stdout to the null device, so that flushing it at exit does not fail."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
