"""The extra that signatures need, asked for where it is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from modpack.errors import ModpackError

__all__ = ["needing_sign"]

_MODULES: Final = ("securesystemslib", "cryptography")


@contextmanager
def needing_sign() -> Iterator[None]:
    """Say which extra of modpack is missing, where an import fails for that.

    Raises:
        ModpackError: it is missing.
    """
    try:
        yield
    except ImportError as failure:
        if (failure.name or "").partition(".")[0] not in _MODULES:
            raise
        raise ModpackError(
            f"signatures need securesystemslib[crypto] 1.1 or newer ({failure}). "
            "Remedy: pip install 'modpack[sign]'"
        ) from failure
