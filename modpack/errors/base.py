"""The common base of all errors and warnings."""

from __future__ import annotations

__all__ = ["ModpackError", "ModpackWarning"]


class ModpackError(Exception):
    """The common base: catching it catches everything that modpack raises on purpose."""


class ModpackWarning(UserWarning):
    """Something in a plan or a package that will not stop the work but may hurt later."""
