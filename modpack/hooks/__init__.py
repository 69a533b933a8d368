"""Model hooks: capture from a live model, description as specs, and restoration.

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
    from modpack.hooks.standalone import capture as capture
    from modpack.hooks.standalone import restore as restore

_MODULES = {
    "AfterBackward": "graph",
    "CaptureGrad": "graph",
    "GraphHandle": "graph_parts",
    "GraphSpec": "graph",
    "HookCapture": "restoring",
    "MultiGrad": "graph",
    "NodeHook": "graph",
    "NodePreHook": "graph",
    "OutputGrad": "graph",
    "SavedTensors": "graph",
    "attach": "graph_parts",
    "capture": "standalone",
    "restore": "standalone",
    "restore_comm_hook": "ddp",
}
"""The defining submodule of each public name."""

__all__ = sorted(_MODULES)


def _find(name: str) -> object:
    return getattr(importlib.import_module(f"modpack.hooks.{_MODULES[name]}"), name)


define_lazily(__name__, _find, frozenset(_MODULES))


def __dir__() -> list[str]:
    return __all__
