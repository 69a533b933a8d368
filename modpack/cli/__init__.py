"""The command line: one module a command, handlers only.

Nothing slow is imported before a command needs it: ``modpack inspect`` never imports torch.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import click

from modpack._version import __version__
from modpack.cli.audit import audit_command
from modpack.cli.cache import cache_command
from modpack.cli.demo import demo_command
from modpack.cli.diff import diff_command
from modpack.cli.export import export_command
from modpack.cli.inspect import inspect_command
from modpack.cli.keygen import keygen_command
from modpack.cli.replay import replay_command
from modpack.cli.report import report_command
from modpack.cli.requirements import requirements_command
from modpack.cli.sbom import sbom_command
from modpack.cli.sign import sign_command
from modpack.cli.suggest import suggest_command
from modpack.cli.verify import verify_command
from modpack.cli.why import why_command

__all__ = ["cli", "main"]


_HELP = """\
Put a PyTorch model, its code and its weights into one file that loads anywhere.

\b
Examples:
  modpack demo
  modpack export train.py:make_model -o model.modpack
  modpack audit model.modpack
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


for _command in (
    export_command,
    suggest_command,
    audit_command,
    inspect_command,
    why_command,
    diff_command,
    requirements_command,
    sbom_command,
    report_command,
    keygen_command,
    sign_command,
    verify_command,
    replay_command,
    cache_command,
    demo_command,
):
    cli.add_command(_command)


def main() -> None:
    """Run the command line of this process and end it with the command's exit status."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # whoever started this closed it
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        stream = getattr(sys, name)
        # A terminal that cannot show a character shows a question mark instead of nothing at all.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
    # Most of what a command makes lives as long as it does: looking for garbage often finds none.
    gc.set_threshold(100_000, 50, 50)
    cli.main(prog_name="modpack")
