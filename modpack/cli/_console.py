"""What commands write, and where."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console, RenderableType

__all__ = [
    "forget_stdout",
    "make_console",
    "refuse_same",
    "settle_stdout",
    "show",
    "warn",
    "write",
    "write_file",
]

_PLAIN_WIDTH = 120
"""Columns where no terminal says how many there are."""


def make_console(stderr: bool = False) -> Console:
    """A console on stdout or stderr: colours at a terminal only, wide enough in a pipe."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    is_sized = stream.isatty() or "COLUMNS" in os.environ
    return Console(
        file=stream, width=None if is_sized else _PLAIN_WIDTH, highlight=False, soft_wrap=False
    )


def show(content: RenderableType) -> None:
    """Render something onto stdout."""
    console = make_console()
    with console.capture() as captured:
        console.print(content)
    lines = (line.rstrip() for line in captured.get().splitlines())
    write("".join(f"{line}\n" for line in lines))


def write(content: str | bytes) -> None:
    """Write text, or bytes as they are, to stdout.

    Whoever reads from a pipe may close it when they have seen enough (``| head``): the rest is
    then not written, and the command's outcome stays what it is.
    """
    try:
        click.echo(content, nl=False, color=True)
    except BrokenPipeError:
        forget_stdout()


def write_file(path: Path, text: str) -> None:
    """Write a file so that under its name there is never a part of it; devices just get it.

    Raises:
        TargetError, OSError: it cannot be written; what was there before is still there.
    """
    from modpack.archive.sinks import open_sink

    if path.exists() and not path.is_file():
        path.write_bytes(text.encode())
        return
    sink = open_sink(path)
    try:
        sink.write(text.encode())
        sink.publish()
    finally:
        sink.discard()


def refuse_same(file: str, output: Path) -> None:
    """Refuse to overwrite a package by what is told of it."""
    from pathlib import Path

    if output.exists() and Path(file).exists() and output.samefile(file):
        raise click.UsageError(f"--output is {file} itself: name another file")


def warn(text: str) -> None:
    """Tell a warning on stderr."""
    click.secho(f"warning: {text}", err=True, fg="yellow")


def forget_stdout() -> None:
    """Send what is still buffered nowhere: Python would complain about it at its end."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


def settle_stdout() -> None:
    """Write what is still buffered, or forget it: an exit status must not depend on it."""
    try:
        sys.stdout.flush()
    except OSError:
        forget_stdout()
