"""The command line: one module a command, handlers only.

Nothing slow is imported before a command needs it: ``modpack inspect`` never imports torch.
"""

from __future__ import annotations

import sys

import click

from modpack._version import __version__
from modpack.cli.demo import demo_command
from modpack.cli.export import export_command
from modpack.cli.inspect import inspect_command
from modpack.cli.replay import replay_command

__all__ = ["cli", "main"]


_HELP = """\
Put a PyTorch model, its code and its weights into one file that loads anywhere.

\b
Examples:
  modpack demo
  modpack export train.py:make_model -o model.modpack
  modpack inspect model.modpack
"""


@click.group(
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every command ends with 0 if all is well, 1 if it found something wrong with the "
    "model or the package, and 2 if it could not do its work. modpack COMMAND --help tells more.",
)
@click.version_option(__version__, message="modpack %(version)s")
def cli() -> None:
    """Put a PyTorch model, its code and its weights into one file that loads anywhere."""


for _command in (export_command, inspect_command, replay_command, demo_command):
    cli.add_command(_command)


def main() -> None:
    """Run the command line of this process and end it with the command's exit status."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows a question mark instead of nothing at all.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
    cli.main(prog_name="modpack")
