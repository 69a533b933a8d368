"""The format's vocabulary: the names of modpack that packages and captures refer to.

A pickle names ``modpack.pickling.rebuild.make_function``, wherever that function is defined. The
functions may move: the table below finds them at load time. Names and signatures are part of the
archive format. A name is never removed and never changes its meaning; a new signature needs a new
name next to the old one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from modpack.core import define_lazily

T = TypeVar("T")

MODULE: Final = __name__
_NAMES: Final = {
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
    "modpack.pickling.classes": (
        "fill_class",
        "make_class",
        "make_named_tuple",
    ),
    "modpack.pickling.scripts": (
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
        "fresh_condition",
        "fresh_context_var",
        "fresh_executor",
        "fresh_lock",
        "fresh_rlock",
        "fresh_semaphore",
        "graph_module",
        "load_script_module",
        "lru_cached",
        "mapping_proxy",
        "named_logger",
        "new_type",
        "operator_of",
        "property_of",
        "referent_of",
        "registered_handler",
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
}
"""The defining modules. A table of names, because some of them are in higher layers."""

DEFINED_IN: Final[Mapping[str, str]] = MappingProxyType(
    {name: module for module, names in _NAMES.items() for name in names}
)
"""The defining module of each name."""


def named_in_packages(obj: T) -> T:
    """Make pickles refer to a function or class by this module's name.

    Args:
        obj: A function or class in the table.

    Raises:
        LookupError: If the table does not list it: new vocabulary must be a deliberate decision.
    """
    named: Any = obj
    if DEFINED_IN.get(named.__name__) != named.__module__:
        raise LookupError(f"{named.__module__}.{named.__name__} is not in the vocabulary")
    # The path that pickles contain. The lazy names below resolve it to the definition.
    named.__module__ = MODULE
    return obj


define_lazily(__name__, DEFINED_IN)
