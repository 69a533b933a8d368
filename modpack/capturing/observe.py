"""The connection between pickler and hook collector, and the hook state that is not saved.

Containers in which hooks collected data may be saved empty.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
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
from modpack.core.names import is_runtime
from modpack.errors import ModpackError, ModpackWarning
from modpack.hooks.choice import (
    HookChoice,
    bound_state,
    check_names,
    hook_functions,
    hook_state,
    own_globals,
    selector,
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
from modpack.pickling.functions import closed_over
from modpack.pickling.remade import fresh
from modpack.saving.object_paths import iter_objects, path_to
from modpack.saving.tensors import ORDINARY, strip_compile_marks

_Reduction = tuple[Any, ...]
_ReduceOwn = Callable[[], Any]
_TORCH_TYPES = (torch.nn.Module, torch.Tensor, torch.optim.Optimizer)


@dataclass(frozen=True)
class ResetState:
    """Containers that are saved empty.

    Attributes:
        containers: The containers by their ids.
        by_hook: Paths from each hook to its containers, by hook name.
    """

    containers: dict[int, Any] = field(default_factory=dict)
    by_hook: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def replacement(self, kind: type) -> Callable[[Any], _Reduction | None] | None:
        """Return a function that replaces a container by an empty one; see the pickler."""
        if not self.containers or kind not in _ARGUMENTS:
            return None

        def replace(container: Any) -> _Reduction | None:
            is_reset = id(container) in self.containers
            return (fresh, (kind, *_ARGUMENTS[kind](container))) if is_reset else None

        return replace


NOTHING = ResetState()


_ARGUMENTS: dict[type, Callable[[Any], _Reduction]] = {
    **dict.fromkeys((list, dict, set, Counter, OrderedDict), lambda container: ()),
    defaultdict: lambda container: (container.default_factory,),
    deque: lambda container: ((), container.maxlen),
}
"""The container types that can be reset, and the arguments that create an empty one."""


def find_recorded_state(
    root: Any,
    extras: dict[str, Any],
    choice: HookChoice,
    is_importable: Callable[[FunctionType], bool],
    process_wide: bool = False,
) -> ResetState:
    """Find the containers that are the state of hooks. All objects are only read.

    Args:
        root: The object to be saved.
        extras: Objects saved together with it, by name.
        choice: The hooks whose state to reset: True, False, hook names, or a predicate over specs.
        is_importable: Returns whether a function can be imported.
        process_wide: Whether process-wide hooks are saved as well.

    Raises:
        TypeError: If ``choice`` has another type.
        ValueError: If no hook has a chosen name.
    """
    wanted = selector(choice)
    if choice is False:
        return NOTHING
    collector = HookCollector(is_importable)
    if process_wide:
        collector.note_global_hooks()
    hooks = list(_all_hooks(collector, root, extras))
    check_names(choice, (spec for spec, _ in hooks))
    found = ResetState()
    for spec, hook in hooks:
        if wanted(spec):
            paths = dict(_containers_of(hook, is_importable))
            found.containers.update({id(each): each for each in paths.values()})
            found.by_hook[spec.name] = tuple(paths)
    return found


def _all_hooks(
    collector: HookCollector, root: Any, extras: dict[str, Any]
) -> Iterator[tuple[HookSpec, Any]]:
    """Yield every hook with its spec, including hooks on modules that only hooks refer to."""
    observer = HookObserver(root, extras, collector)
    todo: list[Any] = [root, *extras.values()]
    seen: set[int] = set()
    while todo:
        for part in iter_objects(todo):
            if id(part) in seen:
                continue
            seen.add(id(part))
            if isinstance(part, DistributedDataParallel):
                observer.note_comm_hooks(part.module, comm_hooks_of(part))
            else:
                observer.note(part)
        specs, payload = collector.pop_specs(observer.names)
        by_name = {spec.name: spec for spec in specs}
        found = [(by_name[name], hook) for name, *_, hook in payload["hooks"]]
        yield from found
        todo = [hook for _, hook in found]


def _containers_of(
    hook: Any, is_importable: Callable[[FunctionType], bool]
) -> Iterator[tuple[str, Any]]:
    """Yield the containers that are a hook's state, with their paths from the hook."""
    todo = [*bound_state(hook).items()]
    for function in hook_functions(hook).values():
        if isinstance(function, torch.nn.Module):
            todo += _bound(function.forward) if isinstance(function.forward, MethodType) else []
        elif not (isinstance(function, FunctionType) and is_importable(function)):
            todo += _steps(function)
    seen: set[int] = set()
    while todo:
        path, value = todo.pop(0)
        if id(value) in seen or (isinstance(value, FunctionType) and is_importable(value)):
            continue
        seen.add(id(value))
        if type(value) in _ARGUMENTS:
            yield path, value
        else:
            todo += [(f"{path}.{step}", child) for step, child in _steps(value)]


def _steps(value: Any) -> list[tuple[str, Any]]:
    """Return the state of a callable or other user object, by name."""
    if isinstance(value, FunctionType):
        return [*closed_over(value), *_defaults(value), *own_globals(value).items()]
    if isinstance(value, MethodType):
        return _bound(value)
    if isinstance(value, functools.partial):
        bound = [(f"args[{index}]", each) for index, each in enumerate(value.args)]
        return [*_steps(value.func), *bound, *value.keywords.items()]
    if isinstance(value, (*_TORCH_TYPES, RemovableHandle, ModuleType, type)):
        return []  # part of the model, or code
    root = type(value).__module__.partition(".")[0]
    is_of_library = is_runtime(type(value).__module__) or root in sys.stdlib_module_names
    return [] if is_of_library and type(value) is not SimpleNamespace else _attributes(value)


def _defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    yield from zip(names[len(names) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _bound(method: MethodType) -> list[tuple[str, Any]]:
    """Return the attributes of a method's object; for a module, those that the method uses."""
    obj = method.__self__
    attributes = _attributes(obj) if not isinstance(obj, type) else []
    if not isinstance(obj, torch.nn.Module):
        return attributes
    mentioned = _names_in(getattr(method.__func__, "__code__", None))
    own = vars(torch.nn.Module())
    return [(n, v) for n, v in attributes if n in mentioned and n not in own]


def _names_in(code: CodeType | None) -> set[str]:
    if code is None:
        return set()
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))


def _attributes(obj: Any) -> list[tuple[str, Any]]:
    found = dict(getattr(obj, "__dict__", {}))
    for kind in type(obj).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if hasattr(obj, name) and name not in found:
                found[name] = getattr(obj, name)
    return list(found.items())


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
        emptied: The containers that are saved empty.

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
        emptied: ResetState = NOTHING,
    ) -> None:
        self.root = unwrap(root)
        self.specs: list[HookSpec] = []
        self.unwrapped: list[DistributedDataParallel] = []
        self.has_met_torch = False
        self.reductions: list[Any] = []
        self._collector = collector
        self._scripted: dict[int, tuple[torch.Tensor, torch.jit.ScriptModule, str]] = {}
        self._emptied = emptied
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
        if _holds_tables(kind):
            return self._handle
        if torch.distributed.is_available() and issubclass(kind, torch.distributed.ProcessGroup):
            return self._process_group
        return None

    def replacement(self, kind: type) -> Callable[[Any], tuple[Any, ...] | None] | None:
        """Return the replacement for containers whose contents are not saved."""
        return self._emptied.replacement(kind)

    def on_packaged(self, obj: object, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """Record the hooks of a module with ``__reduce_package__``: GraphModule, ScriptModule."""
        self.has_met_torch = True
        if isinstance(obj, torch.jit.ScriptModule):
            self.note(obj)  # only traced modules accept hooks
            for name, tensor in named_tensors_of(obj):
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
            return self._tensor(tensor, own)
        if tensor.requires_grad:
            self._collector.note_differentiable(tensor)
        reduced = strip_compile_marks(own())
        self.reductions.append(reduced)
        return reduced

    def _tensor(self, tensor: torch.Tensor, own: _ReduceOwn) -> Any:
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
