"""What an editable install makes importable: not all that lies in the project's folder does.

A script beside the project, or a module in a folder of examples, is found because of where Python
was started. It is loose code: the project's metadata and requirements are none of its business.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["folders_on_path", "found_through"]


def folders_on_path(home: Path, files: Iterable[str]) -> frozenset[str] | None:
    """The folders that an install's path files (``site``) put on the import path.

    Args:
        home: the folder that it is installed in.
        files: the names of the files that it has put there.

    Returns:
        The folders; None if it has no path file, or one that runs code, which may do anything.
    """
    lines = [line for name in files if name.endswith(".pth") for line in _lines(home / name)]
    if not lines or any(line.startswith(("import ", "import\t")) for line in lines):
        return None
    return frozenset(os.path.normpath(home / line) for line in lines)


def _lines(file: Path) -> list[str]:
    """What a path file says; nothing if it cannot be read."""
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, ValueError):
        return []
    told = (line.strip() for line in text.splitlines())
    return [line for line in told if line and not line.startswith("#")]


def found_through(module: str, place: Path, is_folder: bool) -> str:
    """The folder on the import path through which a module is found.

    Args:
        module: its path.
        place: its file, or its folder if it has no code.
        is_folder: whether it is the folder.

    >>> found_through("shop.cart", Path("/code/src/shop/cart.py"), False)
    '/code/src'
    >>> found_through("shop", Path("/code/src/shop/__init__.py"), False)
    '/code/src'
    """
    is_package = not is_folder and place.name.partition(".")[0] == "__init__"
    parents = (place.parent if is_package else place).parents
    depth = module.count(".")
    return os.path.normpath(parents[depth]) if depth < len(parents) else ""
