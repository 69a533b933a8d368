"""The demo: train and package a small model, test it, and reload it without its project.

``python examples/demo`` or ``make demo`` runs it. ``--keep DIR`` keeps the project and the package.
The exit status is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console
from story import EPOCHS, run


def main() -> int:
    """Run the demo on the console."""
    parser = argparse.ArgumentParser("python examples/demo", description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the project and the package")
    parser.add_argument(
        "--epochs", type=int, default=EPOCHS, metavar="N", help="epochs of training (%(default)s)"
    )
    options = parser.parse_args()
    if options.epochs < 1:
        parser.error("--epochs must be at least 1")
    is_sized = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(width=None if is_sized else 120, highlight=False)
    return run(console, options.keep, options.epochs)


if __name__ == "__main__":
    sys.exit(main())
