"""The command line: one module a command, handlers only.

Nothing slow is imported before a command needs it: ``modpack inspect`` never imports torch.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, cast

import click

from modpack._version import __version__

__all__ = ["cli", "main"]

_NAMES: Final = (
    *("audit", "cache", "demo", "diff", "export", "inspect", "keygen", "self-test", "report"),
    *("requirements", "sbom", "sign", "suggest", "verify", "why"),
)
"""The modules of this package that hold a command of the same name."""


class _Commands(Mapping[str, click.Command]):
    """The commands by name, each imported when it is asked for: all of them take 15 ms."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in _NAMES:
            raise KeyError(name)
        identifier = name.replace("-", "_")
        module = importlib.import_module(f"modpack.cli.{identifier}")
        return cast(click.Command, getattr(module, f"{identifier}_command"))

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


@click.group(
    commands=_Commands(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every command ends with 0 if all is well, 1 if it found something wrong with the "
    "model or the package, and 2 if it could not do its work. modpack COMMAND --help tells more.",
)
@click.version_option(__version__, message="modpack %(version)s")
def cli() -> None:
    """Put a PyTorch model, its code and its weights into one file that loads anywhere.

    \b
    Examples:
      modpack demo
      modpack export train.py:make_model -o model.modpack
      modpack audit model.modpack
    """


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
