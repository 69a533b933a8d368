"""The link between the pickler and the collector of hooks."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from modpack.core.hookspec import HookSpec
from modpack.errors import ModpackError, ModpackWarning
from modpack.hooks.collect import HookCollector
from modpack.hooks.ddp import (
    CommHook,
    comm_hooks_of,
    inside,
    kept_comm_hooks,
    unwrapped,
    world_group,
)
from modpack.hooks.kinds import kinds_of
from modpack.hooks.naming import Names
from modpack.hooks.parametrized import (
    is_parametrized,
    reduce_parametrized,
    state_of_parametrized,
)
from modpack.hooks.parts import holds_tables
from modpack.hooks.report import HookStatus, lost
from modpack.hooks.resetting import NOTHING, Emptied
from modpack.hooks.scripted import ScriptedTensors
from modpack.hooks.state import describe_hook
from modpack.hooks.whereabouts import place_in_hooks
from modpack.pickling.ordinarytensors import ORDINARY
from modpack.pickling.storageviews import is_small
from modpack.pickling.tensormarks import without_marks

__all__ = ["HookObserver"]

_Own = Callable[[], Any]
_OF_TORCH = (torch.nn.Module, torch.Tensor, torch.optim.Optimizer)


class HookObserver:
    """Shows modules, tensors, optimizers and handles to a collector while they are pickled.

    Args:
        root: the saved object.
        extras: what is saved along with it, by name; pickled right after it.
        collector: notes the hooks.
        emptied: the containers that arrive empty.

    Attributes:
        specs: the hooks that went into the package, so far.
        unwrapped: the wrappers of which only the module inside is saved.
        has_met_torch: whether a module, a tensor or an optimizer may have been met by now.
        reductions: what was written of each tensor; tells which part of a storage it is.
    """

    def __init__(
        self,
        root: Any,
        extras: dict[str, Any],
        collector: HookCollector,
        emptied: Emptied = NOTHING,
    ) -> None:
        self.specs: list[HookSpec] = []
        self.unwrapped: list[DistributedDataParallel] = []
        self.has_met_torch = False
        self.reductions: list[Any] = []
        self._collector = collector
        self._scripted = ScriptedTensors()
        self._emptied = emptied
        self._extras = {name: extra for name, extra in extras.items() if extra is not None}
        self._pending = bool(self._extras)
        self._names: Names | None = None
        self._root = inside(root)
        self._comm_hooks: dict[int, list[CommHook]] = {}
        self._payload: dict[str, Any] | None = None

    @property
    def root(self) -> Any:
        """The saved object; of a wrapper, what is inside."""
        return self._root

    @property
    def names(self) -> Names:
        """The paths to the parts of the saved object; made when a hook has to be named."""
        if self._names is None:
            self._names = Names(self._root, self._extras)
        return self._names

    def reducer(self, kind: type) -> Callable[[Any, _Own], Any] | None:
        """What turns an object's own reduction into the one to write, by its type."""
        self.has_met_torch |= issubclass(kind, _OF_TORCH)
        if issubclass(kind, DistributedDataParallel):
            return self._wrapper
        if issubclass(kind, torch.nn.Module):
            return self._module
        if kind in ORDINARY:
            return self._plain_tensor
        if issubclass(kind, torch.Tensor):
            return self._tensor
        if issubclass(kind, torch.optim.Optimizer):
            return self._optimizer
        if holds_tables(kind):
            return self._handle
        if torch.distributed.is_available() and issubclass(kind, torch.distributed.ProcessGroup):
            return self._process_group
        return None

    def stand_in(self, kind: type) -> Callable[[Any], tuple[Any, ...] | None] | None:
        """Empty containers in place of those whose contents stay behind."""
        return self._emptied.stand_in(kind)

    def packaged(self, obj: object, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """Note the hooks of a module that packages itself: an FX GraphModule, a ScriptModule."""
        self.has_met_torch = True
        if isinstance(obj, torch.jit.ScriptModule):
            self._note_module(obj)  # only a traced one takes hooks
            for tensor in self._scripted.add(obj):
                self._collector.tensor(tensor)
        elif isinstance(obj, torch.nn.Module):
            self._note_module(obj)
            function, arguments = parts
            return function, tuple(map(self._collector.state_without_hooks, arguments))
        return parts

    @property
    def has_payload(self) -> bool:
        """Whether there is something to be saved along, or hooks of the process, or of a model."""
        return self._pending or self._collector.has_news

    def next_payload(self) -> dict[str, Any] | None:
        """First what is saved along, then hooks, until no new ones turn up."""
        if self._pending:
            self._pending = False
            self._payload = {"extras": self._extras}
            return self._payload
        if not self._collector.has_news:
            return None
        specs, self._payload = self._collector.take(self.names)
        self.specs.extend(specs)
        return self._payload

    def lost(self) -> Iterator[HookStatus]:
        """What cannot be saved at all, which is told aloud."""
        for each in list(self._collector.unsaved()):
            path, _ = self.names.of(each.target)
            called = describe_hook(each.hook, self._collector.is_importable)
            status = lost(each, path, called)
            warnings.warn(f"hook {status.name!r}: {status.why}", ModpackWarning, stacklevel=2)
            yield status

    def whereabouts(self, obj: object) -> tuple[str, str] | None:
        """Which hook leads to an object that could not be pickled, and what can be done."""
        return place_in_hooks(self._payload, obj)

    def _module(self, module: torch.nn.Module, own: _Own) -> Any:
        self._note_module(module)
        if is_parametrized(module):
            self._collector.parametrized(module)
            state = self._collector.state_without_hooks(state_of_parametrized(module))
            return reduce_parametrized(module, state)
        reduction = own()
        if not isinstance(reduction, tuple) or len(reduction) < 3:
            return reduction
        function, arguments, state, *rest = reduction
        return function, arguments, self._collector.state_without_hooks(state), *rest

    def _note_module(self, module: torch.nn.Module) -> None:
        self._collector.module(module)
        self._note_comm_hooks(module, kept_comm_hooks(module))

    def wrapper(self, ddp: DistributedDataParallel) -> None:
        """Note a wrapper's comm hooks, which travel with the module inside."""
        self.unwrapped.append(ddp)
        self._refuse_hooks_of(ddp)
        self._note_comm_hooks(ddp.module, comm_hooks_of(ddp))

    def _wrapper(self, ddp: DistributedDataParallel, own: _Own) -> Any:
        self.wrapper(ddp)
        return unwrapped, (ddp.module,)

    def _note_comm_hooks(self, module: torch.nn.Module, hooks: Iterable[CommHook]) -> None:
        known = self._comm_hooks.setdefault(id(module), [])
        for hook in hooks:
            if not any(hook.is_same_as(other) for other in known):
                self._collector.note("ddp.comm", module, hook, len(known))
                known.append(hook)

    def _refuse_hooks_of(self, ddp: DistributedDataParallel) -> None:
        for kind in kinds_of("module"):
            for position, found in enumerate(kind.find(ddp)):
                name = f"DistributedDataParallel/{kind.name}/{position}"
                called = describe_hook(found.hook, self._collector.is_importable)
                spec = HookSpec(name, kind.name, (), position, called, (), found.flags)
                if self._collector.wanted(spec):
                    raise ModpackError(
                        f"hook {name!r} ({called.name}) hangs on the DistributedDataParallel "
                        "wrapper, of which only the module inside is saved. Remedy: register it "
                        "on the wrapper's .module, or leave it out with the hooks argument"
                    )
                self._collector.left_out.append(spec)

    def _plain_tensor(self, tensor: torch.Tensor, own: _Own) -> Any:
        """The same for tensors of torch's own types, most of which have no hooks."""
        hooks: Any = tensor._backward_hooks or tensor._post_accumulate_grad_hooks
        if hooks or self._scripted.reduced(tensor) is not None:
            return self._tensor(tensor, own)
        if tensor.requires_grad:
            self._collector.differentiable(tensor)
        reduced = without_marks(own())
        if not is_small(reduced):
            self.reductions.append(reduced)
        return reduced

    def _tensor(self, tensor: torch.Tensor, own: _Own) -> Any:
        scripted = self._scripted.reduced(tensor)
        if scripted is not None:
            return scripted
        with torch._C.DisableTorchFunctionSubclass():  # a class may refuse to be asked
            hooks = self._note_tensor(tensor)
        if not hooks:
            reduced = without_marks(own())
        else:
            with warnings.catch_warnings():  # torch warns that it loses the hooks; we do not
                warnings.filterwarnings("ignore", message="backward hook", category=UserWarning)
                reduced = without_marks(own())
        self.reductions.append(reduced)
        return reduced

    def _note_tensor(self, tensor: torch.Tensor) -> Any:
        """Note what hangs on a tensor; gives the hooks that torch would warn of."""
        hooks = tensor._backward_hooks
        if tensor.is_leaf:
            self._collector.tensor(tensor)
            return hooks
        self._collector.differentiable(tensor)
        return hooks

    def _optimizer(self, optimizer: torch.optim.Optimizer, own: _Own) -> Any:
        self._collector.optimizer(optimizer)
        return own()

    def _handle(self, handle: RemovableHandle, own: _Own) -> Any:
        """A handle travels dead; it is linked to its hook again when that is registered."""
        self._collector.handle(handle)
        nothing: tuple[Any, ...] = tuple(OrderedDict() for _ in handle.extra_dict_ref)
        return (
            RemovableHandle.__new__,
            (type(handle),),
            (None, self._collector.numbers.of(handle.id), nothing),
        )

    def _process_group(self, group: Any, own: _Own) -> Any:
        if group is world_group():
            return world_group, ()
        raise ModpackError(
            "a process group belongs to this run and cannot be saved. Remedy: keep None in its "
            "place, which torch's comm hooks take for the default group, and set it after loading"
        )
