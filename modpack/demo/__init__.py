"""The demo: a small model is trained, packaged, and reloaded where its code cannot be imported.

Importing this package does not import torch; running the demo does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["run"]

EPOCHS = 16
"""Some seconds of training on two cores, and about 99 % of the test images read right."""


def run(console: Console, keep: Path | None = None, epochs: int = EPOCHS) -> int:
    """Tell the whole story on a console.

    Args:
        console: where it is told.
        keep: a folder in which the project and the package stay; a temporary one by default.
        epochs: how often the training goes through the training images, at least once.

    Returns:
        0 if the reloaded model is the same as the trained one in all that was checked, else 1.

    Raises:
        ModpackError: if a step could not be done at all.
        ValueError: if ``epochs`` is less than 1.
    """
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, not {epochs}")
    from modpack.demo.story import tell

    return tell(console, keep, epochs)
