"""Model hooks: the kinds of hooks that torch has, and their registration on loaded objects.

Packages capture and restore model hooks by themselves. This package is for other uses: hooks on
the autograd graph (:func:`attach` and its specs), hooks without a package (:func:`capture`,
:func:`restore`), and comm hooks (:func:`restore_comm_hook`).

Names are resolved on first use (PEP 562), so importing this package does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from modpack.core import define_lazily

if TYPE_CHECKING:
    from modpack.capturing.standalone import capture as capture
    from modpack.hooks.ddp import restore_comm_hook as restore_comm_hook
    from modpack.hooks.graph import AfterBackward as AfterBackward
    from modpack.hooks.graph import CaptureGrad as CaptureGrad
    from modpack.hooks.graph import GraphSpec as GraphSpec
    from modpack.hooks.graph import MultiGrad as MultiGrad
    from modpack.hooks.graph import NodeHook as NodeHook
    from modpack.hooks.graph import NodePreHook as NodePreHook
    from modpack.hooks.graph import OutputGrad as OutputGrad
    from modpack.hooks.graph import SavedTensors as SavedTensors
    from modpack.hooks.graph_parts import GraphHandle as GraphHandle
    from modpack.hooks.graph_parts import attach as attach
    from modpack.hooks.restoring import HookCapture as HookCapture
    from modpack.hooks.restoring import restore as restore

_DEFINED_IN = {
    "AfterBackward": "modpack.hooks.graph",
    "CaptureGrad": "modpack.hooks.graph",
    "GraphHandle": "modpack.hooks.graph_parts",
    "GraphSpec": "modpack.hooks.graph",
    "HookCapture": "modpack.hooks.restoring",
    "MultiGrad": "modpack.hooks.graph",
    "NodeHook": "modpack.hooks.graph",
    "NodePreHook": "modpack.hooks.graph",
    "OutputGrad": "modpack.hooks.graph",
    "SavedTensors": "modpack.hooks.graph",
    "attach": "modpack.hooks.graph_parts",
    "capture": "modpack.capturing.standalone",
    "restore": "modpack.hooks.restoring",
    "restore_comm_hook": "modpack.hooks.ddp",
}
"""The module that defines each public name."""

__all__ = sorted(_DEFINED_IN)


def _find(name: str) -> object:
    return getattr(importlib.import_module(_DEFINED_IN[name]), name)


define_lazily(__name__, _find, frozenset(_DEFINED_IN))


def __dir__() -> list[str]:
    return __all__
