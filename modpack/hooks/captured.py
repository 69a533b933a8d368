"""Captured hooks as a value."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from modpack.core.hookspec import HookSpec
from modpack.hooks.parts import Path

__all__ = ["CAPTURE_VERSION", "HookCapture"]

CAPTURE_VERSION = 1
"""Raise it when a reader of the old version would misunderstand a capture."""


@dataclass(frozen=True)
class HookCapture:
    """The hooks of a model, as a value: it can be pickled, and saved with :func:`torch.save`.

    Restoring it runs what is in it, like loading any pickle: restore only what you trust.

    Attributes:
        specs: what was captured.
        hooks: the pickled hooks; they refer to the model by ``paths``.
        paths: what of the model the hooks refer to.
        storages: the contents of tensors that only the hooks have, by key.
        byteorder: that of those contents.
        version: of this format.
    """

    specs: tuple[HookSpec, ...]
    hooks: bytes = field(repr=False)
    paths: tuple[Path, ...] = field(repr=False)
    storages: Mapping[str, bytes] = field(repr=False)
    byteorder: str = sys.byteorder
    version: int = CAPTURE_VERSION

    def __str__(self) -> str:
        return "\n".join(map(str, self.specs)) or "no hooks"
