"""DistributedDataParallel: the module inside is what is saved, and its comm hook with it.

The wrapper itself belongs to a process group and cannot travel. A comm hook waits beside the
reloaded module until the user has wrapped that.
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
        function: what was registered; for one of torch's built-in hooks, its name.
        state: the state that was registered with it.
        buffers: for a hook that synchronizes buffers, when it runs; None for gradients.
    """

    function: Callable[..., Any] | str
    state: Any = None
    buffers: str | None = None

    def is_same_as(self, other: CommHook) -> bool:
        """Whether both are one registration."""
        return self.function is other.function and self.state is other.state

    def register_on(self, ddp: DistributedDataParallel) -> None:
        """Register it on a wrapper."""
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
    """Takes a comm hook away that waits for its module to be wrapped."""

    def __init__(self, module: torch.nn.Module, hook: CommHook) -> None:
        self._module = module
        self._hook = hook

    def remove(self) -> None:
        """Forget it. What is registered on a wrapper already stays: torch cannot remove it."""
        waiting = _KEPT.get(self._module, [])
        waiting[:] = [hook for hook in waiting if hook is not self._hook]


_KEPT: WeakKeyDictionary[torch.nn.Module, list[CommHook]] = WeakKeyDictionary()


@named_in_packages
def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """What a saved wrapper becomes: the module inside."""
    return module


def inside(obj: Any) -> Any:
    """The module inside a wrapper; anything else as it is."""
    return obj.module if isinstance(obj, DistributedDataParallel) else obj


def comm_hooks_of(ddp: DistributedDataParallel) -> Iterator[CommHook]:
    """The comm hooks that the user registered on a wrapper."""
    registered = [hook for hook in ddp._comm_hooks if not _is_torchs_own(hook[0])]
    yield from (CommHook(function, state) for function, state in registered)
    # what torch logs about a wrapper is the only place that names a built-in comm hook
    logged: Any = {} if ddp.logger is None else ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    name = str(logged.get("comm_hook", ""))
    if name.startswith(_BUILTIN):
        yield CommHook(name.removeprefix(_BUILTIN))
    buffers = getattr(ddp, "buffer_hook", None)
    if buffers is not None:
        function, state = buffers.buffer_comm_hook, buffers.buffer_comm_hook_state
        yield CommHook(function, state, buffers.buffer_comm_hook_location.name)


def kept_comm_hooks(module: torch.nn.Module) -> list[CommHook]:
    """The comm hooks that wait for a module to be wrapped."""
    return list(_KEPT.get(module, ()))


def keep_comm_hook(module: torch.nn.Module, hook: CommHook) -> KeptHandle:
    """Let a comm hook wait until the module is wrapped."""
    _KEPT.setdefault(module, []).append(hook)
    return KeptHandle(module, hook)


def restore_comm_hook(ddp: DistributedDataParallel) -> tuple[CommHook, ...]:
    """Register the comm hook that was saved with a module on its new wrapper.

    Args:
        ddp: a fresh wrapper of a module that was loaded with its hooks.

    Returns:
        What was registered.

    Raises:
        TypeError: it is no wrapper.
        ModpackError: no comm hook came with its module.

    torch allows one comm hook on a wrapper: a second one is torch's RuntimeError.
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError(
            f"ddp must be a torch.nn.parallel.DistributedDataParallel, not {type(ddp).__name__}"
        )
    waiting = kept_comm_hooks(ddp.module)
    if not waiting:
        raise ModpackError(
            f"no comm hook came with the {type(ddp.module).__name__} inside this wrapper: it has "
            "to be the very module that was loaded, with its hooks, from a package whose wrapped "
            "model had a comm hook"
        )
    for hook in waiting:
        hook.register_on(ddp)
    return tuple(waiting)


def belongs_to_wrapper(hook: Any) -> bool:
    """Whether a wrapper put a hook onto what is inside, and will do so when it is made again."""
    function = getattr(hook, "func", hook)
    function = getattr(function, "__func__", function)
    return getattr(function, "__module__", None) == DistributedDataParallel.__module__


@named_in_packages
def world_group() -> Any:
    """The default process group, or None where there is none: torch's hooks take both."""
    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


_BUILTIN = "BuiltinCommHookType."
_OWN_HOOKS = ("mixed_precision_hooks", "optimizer_overlap_hooks")


def _is_torchs_own(function: Any) -> bool:
    """Whether the wrapper registered a comm hook by itself, because of its arguments."""
    home = str(getattr(function, "__module__", ""))
    own = home.startswith("torch.distributed.") and home.rpartition(".")[2] in _OWN_HOOKS
    return own and function.__qualname__ in _REGISTERED_BY_WRAPPER


_REGISTERED_BY_WRAPPER = (
    "_reducer_allreduce_and_upcast_hook",
    "_apply_optim_in_backward_hook.<locals>.apply_optim_in_backward_hook",
)
