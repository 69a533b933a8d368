"""Comm hooks of DistributedDataParallel, saved with the module inside the wrapper.

The wrapper itself belongs to a process group and cannot be saved. A loaded comm hook waits until
the user wraps its module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from modpack.errors import ModpackError
from modpack.pickling.rebuild import named_in_packages


@named_in_packages
@dataclass(frozen=True)
class CommHook:
    """A comm hook of a wrapper.

    Attributes:
        function: The registered function; for a built-in hook of torch, its name.
        state: The state that was registered with it.
        buffers: For a hook that synchronizes buffers, when it runs; None for gradients.
    """

    function: Callable[..., Any] | str
    state: Any = None
    buffers: str | None = None

    def is_same_as(self, other: CommHook) -> bool:
        """Return whether both are the same registration."""
        return self.function is other.function and self.state is other.state

    def register_on(self, ddp: DistributedDataParallel) -> None:
        """Register the comm hook on a wrapper."""
        if isinstance(self.function, str):
            kinds = dist.BuiltinCommHookType  # type: ignore[attr-defined]
            kind = getattr(kinds, self.function)
            ddp._register_builtin_comm_hook(kind)  # type: ignore[no-untyped-call]
        elif self.buffers is None:
            ddp.register_comm_hook(self.state, self.function)
        else:
            when = torch.nn.parallel.distributed._BufferCommHookLocation[self.buffers]
            ddp._register_buffer_comm_hook(self.state, self.function, when)


@named_in_packages
class KeptHandle:
    """A handle that removes a comm hook that waits for its module to be wrapped."""

    def __init__(self, module: torch.nn.Module, hook: CommHook) -> None:
        self._module = module
        self._hook = hook

    def remove(self) -> None:
        """Forget the comm hook. One on a wrapper stays, because torch cannot remove it."""
        waiting = _KEPT.get(self._module, [])
        waiting[:] = [hook for hook in waiting if hook is not self._hook]


_KEPT: WeakKeyDictionary[torch.nn.Module, list[CommHook]] = WeakKeyDictionary()


@named_in_packages
def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside, in place of a saved wrapper."""
    return module


def unwrap(obj: Any) -> Any:
    """Return the module inside a wrapper; return other objects unchanged."""
    return obj.module if isinstance(obj, DistributedDataParallel) else obj


def comm_hooks_of(ddp: DistributedDataParallel) -> Iterator[CommHook]:
    """Yield the comm hooks that the user registered on a wrapper."""
    registered = [hook for hook in ddp._comm_hooks if not _is_torchs_own(hook[0])]
    yield from (CommHook(function, state) for function, state in registered)
    # only torch's logging data about a wrapper names a built-in comm hook
    logged: Any = {} if ddp.logger is None else ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    name = str(logged.get("comm_hook", ""))
    if name.startswith(_BUILTIN):
        yield CommHook(name.removeprefix(_BUILTIN))
    buffers = getattr(ddp, "buffer_hook", None)
    if buffers is not None:
        function, state = buffers.buffer_comm_hook, buffers.buffer_comm_hook_state
        yield CommHook(function, state, buffers.buffer_comm_hook_location.name)


def kept_comm_hooks(module: torch.nn.Module) -> list[CommHook]:
    """Return the comm hooks that wait for a module to be wrapped."""
    return list(_KEPT.get(module, ()))


def keep_comm_hook(module: torch.nn.Module, hook: CommHook) -> KeptHandle:
    """Keep a comm hook until its module is wrapped, and return a handle."""
    _KEPT.setdefault(module, []).append(hook)
    return KeptHandle(module, hook)


def restore_comm_hook(ddp: DistributedDataParallel) -> tuple[CommHook, ...]:
    """Register a loaded module's comm hook on the module's new wrapper.

    torch allows one comm hook per wrapper and raises RuntimeError for a second one.

    Args:
        ddp: A fresh wrapper of a module that was loaded with its hooks.

    Returns:
        The registered comm hooks.

    Raises:
        TypeError: If ``ddp`` is not a wrapper.
        ModpackError: If its module was not loaded with a comm hook.
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError(
            f"ddp must be a torch.nn.parallel.DistributedDataParallel, not {type(ddp).__name__}"
        )
    waiting = kept_comm_hooks(ddp.module)
    if not waiting:
        raise ModpackError(
            f"the {type(ddp.module).__name__} inside this wrapper was not loaded with a comm hook",
            hint="Load the module, with its hooks, from a package that was saved with a comm hook, "
            "and wrap that module.",
        )
    for hook in waiting:
        hook.register_on(ddp)
    return tuple(waiting)


def belongs_to_wrapper(hook: Any) -> bool:
    """Return whether a wrapper registered a hook on its module; a new wrapper will do it again."""
    function = getattr(hook, "func", hook)
    function = getattr(function, "__func__", function)
    return getattr(function, "__module__", None) == DistributedDataParallel.__module__


@named_in_packages
def world_group() -> Any:
    """Return the default process group, or None without one; torch's hooks accept both."""
    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


_BUILTIN = "BuiltinCommHookType."
_OWN_HOOKS = ("mixed_precision_hooks", "optimizer_overlap_hooks")


def _is_torchs_own(function: Any) -> bool:
    """Return whether the wrapper registered a comm hook by itself, because of its arguments."""
    module = str(getattr(function, "__module__", ""))
    own = module.startswith("torch.distributed.") and module.rpartition(".")[2] in _OWN_HOOKS
    return own and function.__qualname__ in _REGISTERED_BY_WRAPPER


_REGISTERED_BY_WRAPPER = (
    "_reducer_allreduce_and_upcast_hook",
    "_apply_optim_in_backward_hook.<locals>.apply_optim_in_backward_hook",
)
