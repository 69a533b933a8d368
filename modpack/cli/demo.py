"""``modpack demo``: the whole journey of a model."""

from __future__ import annotations

from pathlib import Path

import click

from modpack.cli._common import command, make_console


@command(
    "demo",
    epilog="Exit status: 0 if every promise was kept, 1 if not, 2 on an error.",
    json_help=None,
)
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Leave the project and the package in this folder.",
)
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    help="How often the training goes through its images.  [default: enough for some seconds]",
)
def demo_command(keep: Path | None, epochs: int | None) -> bool:
    """Train a small model, package it, reload it where its code cannot be imported.

    \b
    Examples:
      modpack demo
      modpack demo --keep somewhere
    """
    from modpack.demo.story import EPOCHS, run

    return run(make_console(), keep, EPOCHS if epochs is None else epochs) != 0
