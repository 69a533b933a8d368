"""The format's vocabulary: every name of modpack that a package or a hook capture may refer to.

A pickle says ``modpack.pickling.rebuild.make_function``, wherever that function is defined by now:
what is named here may move, and is found by the table below when a pickle is loaded. Names and
signatures are a part of the archive format. A name never goes, and never means something else:
where another signature is needed, another name stands beside it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

T = TypeVar("T")

MODULE: Final = __name__
_HOMES: Final = {
    "modpack.hooks.ddp": (
        "CommHook",
        "KeptHandle",
        "unwrapped",
        "world_group",
    ),
    "modpack.hooks.graph_parts": (
        "GraphHandle",
        "AfterBackwardPart",
        "Attachment",
        "BeginPart",
        "CaptureInputsPart",
        "CaptureOutputsPart",
        "CollectPart",
        "EndPart",
        "EnterPart",
        "LeavePart",
        "NodePart",
        "OnGraph",
        "OutputGradPart",
    ),
    "modpack.hooks.graph": (
        "AfterBackward",
        "CaptureGrad",
        "MultiGrad",
        "NodeHook",
        "NodePreHook",
        "OutputGrad",
        "SavedTensors",
    ),
    "modpack.hooks.parametrized": (
        "fill_parametrized",
        "make_parametrized",
        "tensor_of",
    ),
    "modpack.hooks.observe": ("fresh",),
    "modpack.hooks.restoring": (
        "HookCapture",
        "handle",
        "hook_capture",
        "part",
    ),
    "modpack.pickling.classes": (
        "fill_class",
        "make_class",
        "make_enum",
        "make_named_tuple",
        "make_typed_dict",
    ),
    "modpack.pickling.base": (
        "defined",
        "script_module",
        "set_in_script",
    ),
    "modpack.pickling.functions": (
        "GlobalNames",
        "fill_function",
        "make_cell",
        "make_function",
        "make_method",
    ),
    "modpack.pickling.tensor_loading": ("freed_tensor",),
    "modpack.pickling.remade": (
        "exported_program",
        "fill_cell",
        "fill_weak_container",
        "forward_ref",
        "fresh_barrier",
        "fresh_condition",
        "fresh_context_var",
        "fresh_executor",
        "fresh_lock",
        "fresh_rlock",
        "fresh_semaphore",
        "fresh_simple_queue",
        "graph_module",
        "lru_cached",
        "mapping_proxy",
        "memory_view",
        "named_logger",
        "new_type",
        "operator_of",
        "property_of",
        "referent_of",
        "registered_handler",
        "resumed_manager",
        "set_state",
        "standard_stream",
        "the_same",
        "thread_local",
        "type_parameter",
        "weak_container",
        "weak_method",
        "weak_proxy",
        "weak_reference",
    ),
    "modpack.pickling.torch_archives": ("load_script_module",),
}
"""Where they are defined. Imported by name: rooms above this one have some of them."""

HOMES: Final[Mapping[str, str]] = MappingProxyType(
    {name: module for module, names in _HOMES.items() for name in names}
)
"""By each name the module that defines it."""
_FORMER: Final = frozenset(
    {
        "modpack.hooks.captured",
        "modpack.hooks.ddp",
        "modpack.hooks.graphbound",
        "modpack.hooks.graphparts",
        "modpack.hooks.graphspecs",
        "modpack.hooks.parametrized",
        "modpack.hooks.recalling",
        "modpack.hooks.resetting",
        "modpack.hooks.scripted",
        "modpack.pickling.classes",
        "modpack.pickling.definitions",
        "modpack.pickling.functions",
        "modpack.pickling.generated",
        "modpack.pickling.rebuilding",
        "modpack.pickling.remade",
        "modpack.pickling.torchscript",
    }
)
"""The modules that pickles named before there was this one: none of them ever leaves the list."""


def named_in_packages(obj: T) -> T:
    """Let pickles say that a function or class is in this module.

    Args:
        obj: what the table has.

    Raises:
        LookupError: the table does not have it: what packages name may not come by itself.
    """
    named: Any = obj
    if HOMES.get(named.__name__) != named.__module__:
        raise LookupError(f"{named.__module__}.{named.__name__} is not in the vocabulary")
    named.__module__ = MODULE
    return obj


def current_module(module: str, name: str) -> str:
    """The module that a pickle would name today: packages of format 1 name others, and captures.

    >>> current_module("modpack.pickling.functions", "make_cell")
    'modpack.pickling.rebuild'
    >>> current_module("torch.nn", "Linear")
    'torch.nn'
    """
    return MODULE if module in _FORMER and name in HOMES else module


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {MODULE!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(HOMES[name]), name)
    globals()[name] = found
    return found
