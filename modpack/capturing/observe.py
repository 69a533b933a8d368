"""The connection between pickler and hook collector."""

from __future__ import annotations

import functools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from modpack.capturing.collect import HookCollector
from modpack.capturing.describe import ObjectPaths, describe_hook
from modpack.capturing.parametrized import is_parametrized, reduce_parametrized
from modpack.capturing.report import HookStatus, unsaved
from modpack.core.hookspec import HookSpec
from modpack.errors import ModpackError, ModpackWarning
from modpack.hooks.choice import (
    hook_functions,
    hook_state,
)
from modpack.hooks.ddp import (
    CommHook,
    comm_hooks_of,
    kept_comm_hooks,
    unwrap,
    unwrapped,
    world_group,
)
from modpack.hooks.kinds import kinds_of
from modpack.hooks.parametrized import named_tensors_of, tensor_of
from modpack.saving.object_paths import path_to
from modpack.saving.tensors import ORDINARY, strip_compile_marks

_Reduction = tuple[Any, ...]
_ReduceOwn = Callable[[], Any]
_TORCH_TYPES = (torch.nn.Module, torch.Tensor, torch.optim.Optimizer)


def _holds_tables(kind: type) -> bool:
    """Return whether handles of a type refer to hook tables; handles of groups contain others."""
    own = RemovableHandle.__getstate__
    return issubclass(kind, RemovableHandle) and kind.__getstate__ is own


class HookObserver:
    """Passes the modules, tensors, optimizers, and handles that are pickled to a collector.

    Args:
        root: The saved object.
        extras: Objects saved together with it, by name; pickled right after it.
        collector: Records the hooks.

    Attributes:
        root: The saved object; for a wrapper, the module inside.
        specs: The specs of the hooks saved so far.
        unwrapped: Wrappers of which only the module inside is saved.
        has_met_torch: Whether the pickler may have visited a module, tensor, or optimizer.
        reductions: The reductions of tensors, which show the parts of storages that they use.
    """

    def __init__(
        self,
        root: Any,
        extras: dict[str, Any],
        collector: HookCollector,
    ) -> None:
        self.root = unwrap(root)
        self.specs: list[HookSpec] = []
        self.unwrapped: list[DistributedDataParallel] = []
        self.has_met_torch = False
        self.reductions: list[Any] = []
        self._collector = collector
        self._scripted: dict[int, tuple[torch.Tensor, torch.jit.ScriptModule, str]] = {}
        self._extras = extras
        self._pending = bool(extras)
        self._comm_hooks: dict[int, list[CommHook]] = {}
        self._payload: dict[str, Any] | None = None

    @functools.cached_property
    def names(self) -> ObjectPaths:
        """The paths of the saved object's parts, computed when a hook must be named."""
        return ObjectPaths(self.root, self._extras)

    def reducer(self, kind: type) -> Callable[[Any, _ReduceOwn], Any] | None:
        """Return the function that turns an object's own reduction into the one to write."""
        self.has_met_torch |= issubclass(kind, _TORCH_TYPES)
        # Before modules, because a wrapper is one as well.
        if issubclass(kind, DistributedDataParallel):
            return self._wrapper
        if issubclass(kind, torch.nn.Module):
            return self._module
        if kind in ORDINARY:
            return self._plain_tensor
        if issubclass(kind, torch.Tensor):
            return self._reduce_tensor
        if issubclass(kind, torch.optim.Optimizer):
            return self._optimizer
        if _holds_tables(kind):
            return self._handle
        if torch.distributed.is_available() and issubclass(kind, torch.distributed.ProcessGroup):
            return self._process_group
        return None

    def on_packaged(self, obj: object, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """Record the hooks of a module with ``__reduce_package__``: GraphModule, ScriptModule."""
        self.has_met_torch = True
        if isinstance(obj, torch.jit.ScriptModule):
            self.note(obj)  # only traced modules accept hooks
            for name, tensor in named_tensors_of(obj):
                # The tensor is kept as well, so that no other object gets its ID.
                self._scripted.setdefault(id(tensor), (tensor, obj, name))
                self._collector.note_tensor(tensor)
        elif isinstance(obj, torch.nn.Module):
            self.note(obj)
            function, arguments = parts
            return function, tuple(map(self._collector.state_without_hooks, arguments))
        return parts

    @property
    def needs_modpack(self) -> bool:
        """Whether torch.package would lose extras, hooks, or handles that were pickled."""
        return bool(self._extras) or self._collector.needs_modpack

    @property
    def has_payload(self) -> bool:
        """Whether extras or hooks remain to be pickled."""
        return self._pending or self._collector.has_pending

    def next_payload(self) -> dict[str, Any] | None:
        """Return the extras first, then hooks until no new ones are found."""
        if self._pending:
            self._pending = False
            self._payload = {"extras": self._extras}
            return self._payload
        # Pickling a hook may reach other modules and tensors, whose hooks then follow.
        if not self._collector.has_pending:
            return None
        specs, self._payload = self._collector.pop_specs(self.names)
        self.specs.extend(specs)
        return self._payload

    def warn_unsaved(self) -> Iterator[HookStatus]:
        """Warn about each hook that cannot be saved, and yield its status."""
        for each in list(self._collector.find_unsaved()):
            path, _ = self.names.of(each.target)
            called = describe_hook(each.hook, self._collector.is_importable)
            status = unsaved(each, path, called)
            warnings.warn(f"hook {status.name!r}: {status.text}", ModpackWarning, stacklevel=2)
            yield status

    def locate(self, obj: object) -> tuple[str, str] | None:
        """Return the hook that refers to an object that could not be pickled, and a hint.

        Args:
            obj: The object; a class represents its instances.

        Returns:
            ``hook 'layer1/forward/0' -> collector.lock`` and how to exclude the hook; None if no
            hook refers to the object.
        """
        payload = self._payload or {}
        hooks = [(name, hook) for name, *_, hook in payload.get("hooks", ())]
        parts = (torch.nn.Module, torch.optim.Optimizer)  # usually pickled before
        for closed in (parts, ()):
            for name, hook in hooks:
                path = _path_in(hook, obj, closed)
                if path is not None:
                    hint = f"Or exclude the hook: hooks=lambda spec: spec.name != {name!r}."
                    return f"hook {name!r}{path}", hint
        for name, extra in payload.get("extras", {}).items():
            path = path_to(extra, obj, name)
            if path is not None:
                return path, ""
        return None

    def note(self, part: Any) -> None:
        """Record a part's hooks: of a module, tensor, or optimizer; record a handle itself."""
        if isinstance(part, torch.nn.Module):
            self._collector.note_hooks(part, "module")
            self.note_comm_hooks(part, kept_comm_hooks(part))
        elif isinstance(part, torch.Tensor):
            with torch._C.DisableTorchFunctionSubclass():  # a subclass may reject the calls
                if part.is_leaf:
                    self._collector.note_tensor(part)
                else:
                    self._collector.note_differentiable(part)
        elif isinstance(part, torch.optim.Optimizer):
            self._collector.note_hooks(part, "optimizer")
        elif _holds_tables(type(part)):
            self._collector.handles.append(part)

    def _module(self, module: torch.nn.Module, own: _ReduceOwn) -> Any:
        self.note(module)
        reduction: Any
        if is_parametrized(module):
            # torch's own reduction of such a module raises an error.
            self._collector.parametrized.append(module)
            reduction = reduce_parametrized(module)
        else:
            reduction = own()
        if not isinstance(reduction, tuple) or len(reduction) < 3:
            return reduction
        function, arguments, state, *rest = reduction
        return function, arguments, self._collector.state_without_hooks(state), *rest

    def _wrapper(self, ddp: DistributedDataParallel, own: _ReduceOwn) -> Any:
        """Reduce a wrapper to the module inside, with which its comm hooks are saved."""
        self.unwrapped.append(ddp)
        self._reject_wrapper_hooks(ddp)
        self.note_comm_hooks(ddp.module, comm_hooks_of(ddp))
        return unwrapped, (ddp.module,)

    def note_comm_hooks(self, module: torch.nn.Module, hooks: Iterable[CommHook]) -> None:
        """Record comm hooks of a module, each once: a wrapper's may also wait for its module."""
        known = self._comm_hooks.setdefault(id(module), [])
        for hook in hooks:
            if not any(hook.is_same_as(other) for other in known):
                self._collector.note_hook("ddp.comm", module, hook, len(known))
                known.append(hook)

    def _reject_wrapper_hooks(self, ddp: DistributedDataParallel) -> None:
        for kind in kinds_of("module"):
            # The wrapper is not saved, so its hooks would be lost without a word.
            for position, found in enumerate(kind.find(ddp)):
                name = f"DistributedDataParallel/{kind.name}/{position}"
                called = describe_hook(found.hook, self._collector.is_importable)
                spec = HookSpec(name, kind.name, (), position, called, (), found.flags)
                if self._collector.wanted(spec):
                    raise ModpackError(
                        f"hook {name!r} ({called.name}) is registered on the "
                        "DistributedDataParallel wrapper, but only the module inside is saved",
                        hint="Register it on the wrapper's .module, or exclude it with the hooks "
                        "argument.",
                    )
                self._collector.left_out.append(spec)

    def _plain_tensor(self, tensor: torch.Tensor, own: _ReduceOwn) -> Any:
        """Reduce a tensor of torch's own types, most of which have no hooks."""
        hooks: Any = tensor._backward_hooks or tensor._post_accumulate_grad_hooks
        if hooks or id(tensor) in self._scripted:
            return self._reduce_tensor(tensor, own)
        if tensor.requires_grad:
            self._collector.note_differentiable(tensor)
        reduced = strip_compile_marks(own())
        self.reductions.append(reduced)
        return reduced

    def _reduce_tensor(self, tensor: torch.Tensor, own: _ReduceOwn) -> Any:
        if id(tensor) in self._scripted:
            _, module, name = self._scripted[id(tensor)]
            return tensor_of, (module, name)
        self.note(tensor)
        with torch._C.DisableTorchFunctionSubclass():
            hooks = tensor._backward_hooks
        if not hooks:
            reduced = strip_compile_marks(own())
        else:
            with (
                warnings.catch_warnings()
            ):  # torch warns that it loses the hooks; modpack saves them
                warnings.filterwarnings("ignore", message="backward hook", category=UserWarning)
                reduced = strip_compile_marks(own())
        self.reductions.append(reduced)
        return reduced

    def _optimizer(self, optimizer: torch.optim.Optimizer, own: _ReduceOwn) -> Any:
        self.note(optimizer)
        return own()

    def _handle(self, handle: RemovableHandle, own: _ReduceOwn) -> Any:
        """Reduce a handle to a dead one, which is linked when its hook is registered again."""
        self.note(handle)
        nothing: tuple[Any, ...] = tuple(OrderedDict() for _ in handle.extra_dict_ref)
        return (
            RemovableHandle.__new__,
            (type(handle),),
            (None, self._collector.numbers.map_id(handle.id), nothing),
        )

    def _process_group(self, group: Any, own: _ReduceOwn) -> Any:
        # The default group of the loading process takes its place.
        if group is world_group():
            return world_group, ()
        raise ModpackError(
            "a process group belongs to this run and cannot be saved",
            hint="Save None instead, which torch's comm hooks treat as the default group, and set "
            "the group after loading.",
        )


def _path_in(hook: Any, target: object, closed: tuple[type, ...]) -> str | None:
    if any(
        each is target or type(each) is target for each in (hook, *hook_functions(hook).values())
    ):
        return ""
    for key, value in hook_state(hook).items():
        found = path_to(value, target, f" -> {key}", closed)
        if found is not None:
            return found
    return path_to(hook, target, "", closed)
