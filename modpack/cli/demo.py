"""``modpack demo``: train, package, reload, and serve a small model."""

from __future__ import annotations

from pathlib import Path

import click

from modpack.cli._common import command, make_console


@command(
    "demo",
    epilog="Exit status: 0 if every check passes, 1 if not, 2 on an error.",
    json_help=None,
)
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the project and the package in DIR.",
)
@click.option(
    "--epochs",
    metavar="N",
    type=click.IntRange(min=1),
    help="Train for this many epochs.  [default: 16]",
)
def demo_command(keep: Path | None, epochs: int | None) -> bool:
    """Train, package, reload, and serve a small example model.

    modpack tests the package in a clean interpreter that cannot import the project, reloads the
    model, and compares predictions, hooks, and gradients with the trained model's.

    \b
    Examples:
      modpack demo
      modpack demo --keep demo_output
    """
    from modpack.demo.story import EPOCHS, run

    return run(make_console(), keep, EPOCHS if epochs is None else epochs) != 0
