"""Model hooks: the kinds of hooks that torch has, and their registration on loaded objects.

Packages capture and restore model hooks by themselves. This package is for other uses: hooks on
the autograd graph (:func:`attach` and its specs), and comm hooks (:func:`restore_comm_hook`).

Names are resolved on first use (PEP 562), so importing this package does not import torch.
"""

from __future__ import annotations

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

_NAMES = {
    "modpack.hooks.ddp": ("restore_comm_hook",),
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
    "modpack.hooks.graph_parts": ("GraphHandle", "attach"),
}
"""The public names by the module that defines them."""

_DEFINED_IN = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_DEFINED_IN)


define_lazily(__name__, _DEFINED_IN)
