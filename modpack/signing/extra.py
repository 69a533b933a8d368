"""The extra that signatures need, asked for where it is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from modpack.errors import ModpackError

__all__ = ["needing_sign"]

_MODULES: Final = ("securesystemslib", "cryptography")


@contextmanager
def needing_sign() -> Iterator[None]:
    """Say which extra of modpack is missing or broken, where an import fails for that.

    Nothing but imports of what is in the extra belongs into it.

    Raises:
        ModpackError: it is missing, or cannot be imported.
    """
    try:
        yield
    except (ImportError, AttributeError, OSError) as failure:  # what imports of broken wheels raise
        if isinstance(failure, ModuleNotFoundError) and _is_missing(failure.name or ""):
            raise ModpackError(
                f"signatures need securesystemslib[crypto] 1.1 or newer ({failure}). "
                "Remedy: pip install 'modpack[sign]'"
            ) from failure
        raise ModpackError(
            "signatures need securesystemslib[crypto] 1.1 or newer, and what is installed cannot "
            f"be imported ({type(failure).__name__}: {failure}). Remedy: "
            "pip install --force-reinstall 'securesystemslib[crypto]>=1.1'"
        ) from failure


def _is_missing(module: str) -> bool:
    """Whether a library of the extra is not there at all, rather than a part of it."""
    root = module.partition(".")[0]
    return root in _MODULES and sys.modules.get(root) is None
