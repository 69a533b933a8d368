"""The link between the pickler and the collector of hooks, and which state of hooks stays behind.

Containers in which hooks have collected something may arrive empty.
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
from modpack.hooks.describe import (
    HookChoice,
    ObjectPaths,
    carried_by,
    check_names,
    describe_hook,
    functions_of,
    own_globals,
    selector,
    state_of_hook,
)
from modpack.hooks.kinds import kinds_of
from modpack.hooks.model_parts import holds_tables
from modpack.hooks.parametrized import (
    is_parametrized,
    named_tensors_of,
    reduce_parametrized,
    tensor_of,
)
from modpack.hooks.report import HookStatus, lost
from modpack.pickling.functions import closed_over
from modpack.pickling.object_paths import iter_objects, path_to
from modpack.pickling.rebuild import named_in_packages
from modpack.pickling.tensors import ORDINARY, strip_compile_marks

_Made = tuple[Any, ...]
_Own = Callable[[], Any]
_OF_TORCH = (torch.nn.Module, torch.Tensor, torch.optim.Optimizer)


@dataclass(frozen=True)
class ResetState:
    """Containers of which only an empty one is saved.

    Attributes:
        containers: the containers by their ids.
        by_hook: what was emptied, by hook name: the paths from the hook.
    """

    containers: dict[int, Any] = field(default_factory=dict)
    by_hook: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def replacement(self, kind: type) -> Callable[[Any], _Made | None] | None:
        """For a type: what tells of a container how to make an empty one; see the pickler."""
        if not self.containers or kind not in _ARGUMENTS:
            return None

        def emptied(container: Any) -> _Made | None:
            is_one = id(container) in self.containers
            return (fresh, (kind, *_ARGUMENTS[kind](container))) if is_one else None

        return emptied

    def fresh(self, container: Any) -> Any:
        """An empty container like one that is emptied."""
        return fresh(None, type(container), *_ARGUMENTS[type(container)](container))


NOTHING = ResetState()


@named_in_packages
def fresh(package: object, kind: type, *arguments: Any) -> Any:
    """An empty container in place of one whose contents were left behind."""
    return kind(*arguments)


_ARGUMENTS: dict[type, Callable[[Any], _Made]] = {
    **dict.fromkeys((list, dict, set, Counter, OrderedDict), lambda container: ()),
    defaultdict: lambda container: (container.default_factory,),
    deque: lambda container: ((), container.maxlen),
}
"""What can be emptied, each with how to make an empty one like it."""


def find_collected(
    root: Any,
    extras: dict[str, Any],
    choice: HookChoice,
    is_importable: Callable[[FunctionType], bool],
    process_wide: bool = False,
) -> ResetState:
    """Find the containers that are the state of hooks. Everything is only read.

    Args:
        root: the object that is going to be saved.
        extras: what is saved along with it, by name.
        choice: whose state to leave behind: True, False, hook names, or a predicate over specs.
        is_importable: tells which functions can be imported.
        process_wide: whether the hooks of the whole process are saved as well.

    Raises:
        TypeError, ValueError: it is no choice, or no hook has a name.
    """
    wanted = selector(choice)
    if choice is False:
        return NOTHING
    collector = HookCollector(is_importable)
    if process_wide:
        collector.process_wide()
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
    """Every hook with its spec: also those of modules that only other hooks lead to."""
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
        specs, payload = collector.take(observer.names)
        by_name = {spec.name: spec for spec in specs}
        found = [(by_name[name], hook) for name, *_, hook in payload["hooks"]]
        yield from found
        todo = [hook for _, hook in found]


def _containers_of(
    hook: Any, is_importable: Callable[[FunctionType], bool]
) -> Iterator[tuple[str, Any]]:
    """The containers that are a hook's state, by their paths from the hook."""
    todo = [*carried_by(hook).items()]
    for function in functions_of(hook).values():
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
    """What a callable or another object of the user's carries along, by name."""
    if isinstance(value, FunctionType):
        return [*closed_over(value), *_defaults(value), *own_globals(value).items()]
    if isinstance(value, MethodType):
        return _bound(value)
    if isinstance(value, functools.partial):
        bound = [(f"args[{index}]", each) for index, each in enumerate(value.args)]
        return [*_steps(value.func), *bound, *value.keywords.items()]
    if isinstance(value, (*_OF_TORCH, RemovableHandle, ModuleType, type)):
        return []  # a part of the model, or code
    root = type(value).__module__.partition(".")[0]
    is_of_library = root in ("torch", "modpack") or root in sys.stdlib_module_names
    return [] if is_of_library and type(value) is not SimpleNamespace else _attributes(value)


def _defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    yield from zip(names[len(names) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _bound(method: MethodType) -> list[tuple[str, Any]]:
    """The attributes of the object; of a module only those that the method mentions."""
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


class HookObserver:
    """Shows modules, tensors, optimizers and handles to a collector while they are pickled.

    Args:
        root: the saved object.
        extras: what is saved along with it, by name; pickled right after it.
        collector: notes the hooks.
        emptied: the containers that arrive empty.

    Attributes:
        root: the saved object; of a wrapper, what is inside.
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
        emptied: ResetState = NOTHING,
    ) -> None:
        self.root = inside(root)
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
        """The paths to the parts of the saved object; made when a hook has to be named."""
        return ObjectPaths(self.root, self._extras)

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

    def replacement(self, kind: type) -> Callable[[Any], tuple[Any, ...] | None] | None:
        """Empty containers in place of those whose contents stay behind."""
        return self._emptied.replacement(kind)

    def on_packaged(self, obj: object, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """Note the hooks of a module that packages itself: an FX GraphModule, a ScriptModule."""
        self.has_met_torch = True
        if isinstance(obj, torch.jit.ScriptModule):
            self.note(obj)  # only a traced one takes hooks
            for name, tensor in named_tensors_of(obj):
                self._scripted.setdefault(id(tensor), (tensor, obj, name))
                self._collector.tensor(tensor)
        elif isinstance(obj, torch.nn.Module):
            self.note(obj)
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

    def locate(self, obj: object) -> tuple[str, str] | None:
        """The hook that leads to an object that could not be pickled, and what else can be done.

        Args:
            obj: the object; a class stands for an instance of it.

        Returns:
            ``hook 'layer1/forward/0' -> collector.lock`` and how to leave the hook out; None
            if no hook leads to it.
        """
        payload = self._payload or {}
        hooks = [(name, hook) for name, *_, hook in payload.get("hooks", ())]
        parts = (torch.nn.Module, torch.optim.Optimizer)  # in the pickle already, mostly
        for closed in (parts, ()):
            for name, hook in hooks:
                path = _path_in(hook, obj, closed)
                if path is not None:
                    remedy = f"leave the hook out (hooks=lambda spec: spec.name != {name!r})"
                    return f"hook {name!r}{path}", remedy
        for name, extra in payload.get("extras", {}).items():
            path = path_to(extra, obj, name)
            if path is not None:
                return path, ""
        return None

    def note(self, part: Any) -> None:
        """Note what hangs on a module, a tensor or an optimizer; a handle by itself."""
        if isinstance(part, torch.nn.Module):
            self._collector.note_hooks(part, "module")
            self.note_comm_hooks(part, kept_comm_hooks(part))
        elif isinstance(part, torch.Tensor):
            with torch._C.DisableTorchFunctionSubclass():  # a class may refuse to be asked
                if part.is_leaf:
                    self._collector.tensor(part)
                else:
                    self._collector.differentiable(part)
        elif isinstance(part, torch.optim.Optimizer):
            self._collector.note_hooks(part, "optimizer")
        elif holds_tables(type(part)):
            self._collector.handles.append(part)

    def _module(self, module: torch.nn.Module, own: _Own) -> Any:
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

    def wrapper(self, ddp: DistributedDataParallel) -> None:
        """Note a wrapper's comm hooks, which travel with the module inside."""
        self.unwrapped.append(ddp)
        self._refuse_hooks_of(ddp)
        self.note_comm_hooks(ddp.module, comm_hooks_of(ddp))

    def _wrapper(self, ddp: DistributedDataParallel, own: _Own) -> Any:
        self.wrapper(ddp)
        return unwrapped, (ddp.module,)

    def note_comm_hooks(self, module: torch.nn.Module, hooks: Iterable[CommHook]) -> None:
        """Note comm hooks for a module; those of a wrapper may wait for its module as well."""
        known = self._comm_hooks.setdefault(id(module), [])
        for hook in hooks:
            if not any(hook.is_same_as(other) for other in known):
                self._collector.note_hook("ddp.comm", module, hook, len(known))
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
        if hooks or id(tensor) in self._scripted:
            return self._tensor(tensor, own)
        if tensor.requires_grad:
            self._collector.differentiable(tensor)
        reduced = strip_compile_marks(own())
        self.reductions.append(reduced)
        return reduced

    def _tensor(self, tensor: torch.Tensor, own: _Own) -> Any:
        if id(tensor) in self._scripted:
            _, module, name = self._scripted[id(tensor)]
            return tensor_of, (module, name)
        self.note(tensor)
        with torch._C.DisableTorchFunctionSubclass():
            hooks = tensor._backward_hooks
        if not hooks:
            reduced = strip_compile_marks(own())
        else:
            with warnings.catch_warnings():  # torch warns that it loses the hooks; we do not
                warnings.filterwarnings("ignore", message="backward hook", category=UserWarning)
                reduced = strip_compile_marks(own())
        self.reductions.append(reduced)
        return reduced

    def _optimizer(self, optimizer: torch.optim.Optimizer, own: _Own) -> Any:
        self.note(optimizer)
        return own()

    def _handle(self, handle: RemovableHandle, own: _Own) -> Any:
        """A handle travels dead; it is linked to its hook again when that is registered."""
        self.note(handle)
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


def _path_in(hook: Any, target: object, closed: tuple[type, ...]) -> str | None:
    if any(each is target or type(each) is target for each in (hook, *functions_of(hook).values())):
        return ""
    for key, value in state_of_hook(hook).items():
        found = path_to(value, target, f" -> {key}", closed)
        if found is not None:
            return found
    return path_to(hook, target, "", closed)
