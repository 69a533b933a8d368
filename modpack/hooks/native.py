"""Hooks that torch's own utilities put on modules: part of the module, left where they are.

weight_norm, spectral_norm, pruning and lazy modules keep what they need in hooks whose
handles they hold themselves. They travel with the module's state; registering them again
would run them twice.
"""

from __future__ import annotations

from types import MethodType

import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.prune import BasePruningMethod

__all__ = ["travels_natively"]

_UTILITIES = "torch.nn.utils."


def travels_natively(hook: object) -> bool:
    """Whether a hook belongs to one of torch's utilities, recognised by its type."""
    called = getattr(hook, "hook", hook) if _is_wrapper(hook) else hook
    if isinstance(called, (BasePruningMethod, torch.jit.ScriptFunction)):
        return True  # a ScriptModule's own hooks are compiled, and a part of it
    if isinstance(called, MethodType):
        own = called.__func__.__module__ == LazyModuleMixin.__module__
        return own and isinstance(called.__self__, LazyModuleMixin)
    return not callable_type_is_plain(called)


def callable_type_is_plain(called: object) -> bool:
    """Whether a callable is not an instance of a class of torch's utilities."""
    return not type(called).__module__.startswith(_UTILITIES)


def _is_wrapper(hook: object) -> bool:
    return type(hook).__module__ == torch.nn.Module.__module__
