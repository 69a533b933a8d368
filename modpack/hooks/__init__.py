"""Model hooks: found on a live model, described as specs, registered again after loading.

Packages capture and restore hooks by themselves. What is here for users: hooks that belong to
the autograd graph (:func:`attach` and its specs), hooks without a package (:func:`capture`,
:func:`restore`, :func:`copy`), and comm hooks (:func:`restore_comm_hook`).

Names are resolved on first use (PEP 562): importing this imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modpack.hooks.ddp import restore_comm_hook
    from modpack.hooks.graph import (
        AfterBackward,
        CaptureGrad,
        GraphSpec,
        MultiGrad,
        NodeHook,
        NodePreHook,
        OutputGrad,
        SavedTensors,
    )
    from modpack.hooks.graph_parts import GraphHandle, attach
    from modpack.hooks.restoring import HookCapture
    from modpack.hooks.standalone import capture, copy, restore

__all__ = [
    "AfterBackward",
    "CaptureGrad",
    "GraphHandle",
    "GraphSpec",
    "HookCapture",
    "MultiGrad",
    "NodeHook",
    "NodePreHook",
    "OutputGrad",
    "SavedTensors",
    "attach",
    "capture",
    "copy",
    "restore",
    "restore_comm_hook",
]

_HOMES = {
    "modpack.hooks.restoring": ("HookCapture",),
    "modpack.hooks.ddp": ("restore_comm_hook",),
    "modpack.hooks.graph_parts": (
        "GraphHandle",
        "attach",
    ),
    "modpack.hooks.graph": (
        "AfterBackward",
        "CaptureGrad",
        "GraphSpec",
        "MultiGrad",
        "NodeHook",
        "NodePreHook",
        "OutputGrad",
        "SavedTensors",
    ),
    "modpack.hooks.standalone": (
        "capture",
        "copy",
        "restore",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'modpack.hooks' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
