"""The command line: one module for each command.

A command imports its slow dependencies when it runs: ``modpack inspect`` never imports torch.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, cast

import click

from modpack._version import __version__

__all__ = ["cli", "main"]

_SECTIONS: Final = {
    "Create packages": ("export",),
    "Inspect packages": ("inspect", "audit", "why", "diff", "report", "requirements", "sbom"),
    "Sign and verify packages": ("keygen", "sign", "verify"),
    "Share packages": ("push", "pull"),
    "Run packages": ("run", "serve", "self-test"),
    "Maintenance": ("cache",),
}
"""The headings of the help, each with its commands. Each command has a module of its name."""
_NAMES: Final = tuple(sorted(name for names in _SECTIONS.values() for name in names))


class _Commands(Mapping[str, click.Command]):
    """The commands by name. Importing each on first use saves up to 15 ms."""

    def __getitem__(self, name: str) -> click.Command:
        # Checked first, because any other module of this package could be imported by its name.
        if name not in _NAMES:
            raise KeyError(name)
        identifier = name.replace("-", "_")
        module = importlib.import_module(f"modpack.cli.{identifier}")
        return cast(click.Command, getattr(module, f"{identifier}_command"))

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


class _SectionedGroup(click.Group):
    """A group whose help lists the commands by section, with their full summaries."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, _NAMES))
        for heading, names in _SECTIONS.items():
            with formatter.section(heading):
                rows = [(name.ljust(width), _summary(self.commands[name])) for name in names]
                formatter.write_dl(rows)


def _summary(command: click.Command) -> str:
    """Return the first line of a command's help."""
    return (command.help or "").partition("\n")[0]


@click.group(
    cls=_SectionedGroup,
    commands=_Commands(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit status: 0 on success; 1 if the command found a problem with the model or the "
    "package; 2 if the command failed. Run modpack COMMAND --help for details.",
)
@click.version_option(__version__, message="modpack %(version)s")
def cli() -> None:
    """Put a PyTorch model, its code, weights, and hooks into one file.

    The file loads in an environment without the project that defines the model.

    \b
    Examples:
      modpack export train.py:make_model -o model.modpack
      modpack audit model.modpack
    """


def main() -> None:
    """Run the command line, and exit with the command's status."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the parent process closed the stream
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        stream = getattr(sys, name)
        # Show a question mark for a character that the stream cannot encode, instead of failing.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
    # NumPy is optional, and torch warns on its import that it is missing. A NumPy that is installed
    # but broken has another message, and still causes a warning.
    warnings.filterwarnings("ignore", "Failed to initialize NumPy: No module named 'numpy'")
    # Most objects live until the command ends, so frequent garbage collections find little.
    gc.set_threshold(100_000, 50, 50)
    cli.main(prog_name="modpack")
