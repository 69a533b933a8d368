"""Leaving behind what hooks have collected: their containers arrive empty."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from modpack.core.hookspec import HookSpec
from modpack.hooks.collect import HookCollector
from modpack.hooks.ddp import comm_hooks_of, inside, kept_comm_hooks
from modpack.hooks.naming import Names
from modpack.hooks.selection import HookChoice, check_names, selector
from modpack.hooks.state import carried_by, functions_of, own_globals
from modpack.pickling.functions import named_globals
from modpack.pickling.paths import objects_in
from modpack.pickling.rebuild import named_in_packages

__all__ = ["NOTHING", "Emptied", "find_collected", "fresh"]

_Made = tuple[Any, ...]


@dataclass(frozen=True)
class Emptied:
    """Containers of which only an empty one is saved.

    Attributes:
        containers: the containers by their ids.
        by_hook: what was emptied, by hook name: the paths from the hook.
    """

    containers: dict[int, Any] = field(default_factory=dict)
    by_hook: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def stand_in(self, kind: type) -> Callable[[Any], _Made | None] | None:
        """For a type: what tells of a container how to make an empty one; see the pickler."""
        if not self.containers or kind not in _ARGUMENTS:
            return None
        return lambda container: self._stand_in(kind, container)

    def _stand_in(self, kind: type, container: Any) -> _Made | None:
        if id(container) not in self.containers:
            return None
        return fresh, (kind, *_ARGUMENTS[kind](container))

    def fresh(self, container: Any) -> Any:
        """An empty container like one that is emptied."""
        return fresh(None, type(container), *_ARGUMENTS[type(container)](container))


NOTHING = Emptied()


@named_in_packages
def fresh(package: object, kind: type, *arguments: Any) -> Any:
    """An empty container in place of one whose contents were left behind."""
    return kind(*arguments)


_ARGUMENTS: dict[type, Callable[[Any], _Made]] = {
    list: lambda container: (),
    dict: lambda container: (),
    set: lambda container: (),
    Counter: lambda container: (),
    OrderedDict: lambda container: (),
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
) -> Emptied:
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
    found = Emptied()
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
    names = Names(inside(root), extras)
    todo: list[Any] = [root, *extras.values()]
    seen: set[int] = set()
    while todo:
        for part in objects_in(todo):
            if id(part) not in seen:
                seen.add(id(part))
                _note(collector, part)
        specs, payload = collector.take(names)
        by_name = {spec.name: spec for spec in specs}
        found = [(by_name[name], hook) for name, *_, hook in payload["hooks"]]
        yield from found
        todo = [hook for _, hook in found]


def _note(collector: HookCollector, part: Any) -> None:
    if isinstance(part, DistributedDataParallel):
        for position, hook in enumerate(comm_hooks_of(part)):
            collector.note("ddp.comm", part.module, hook, position)
    elif isinstance(part, torch.nn.Module):
        collector.module(part)
        for position, hook in enumerate(kept_comm_hooks(part)):
            collector.note("ddp.comm", part, hook, position)
    elif isinstance(part, torch.Tensor) and part.is_leaf:
        collector.tensor(part)
    elif isinstance(part, torch.optim.Optimizer):
        collector.optimizer(part)


# -- the state of one hook -------------------------------------------------------------------


def _containers_of(
    hook: Any, is_importable: Callable[[FunctionType], bool]
) -> Iterator[tuple[str, Any]]:
    """The containers that are a hook's state, by their paths from the hook."""
    todo = [*carried_by(hook).items()]
    for function in functions_of(hook).values():
        if not (isinstance(function, FunctionType) and is_importable(function)):
            todo += _bound_call(function) or _steps(function)
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
        return [*_cells(value), *_defaults(value), *own_globals_of(value)]
    if isinstance(value, MethodType):
        return _bound(value)
    if type(value).__name__ == "partial" and hasattr(value, "func"):
        bound = [(f"args[{index}]", each) for index, each in enumerate(value.args)]
        return [*_steps(value.func), *bound, *value.keywords.items()]
    if _is_part_of_the_model(value) or not _is_of_the_users(value):
        return []
    return _attributes(value)


def own_globals_of(function: FunctionType) -> list[tuple[str, Any]]:
    """The globals that travel with a function because its module cannot be imported."""
    if function.__module__ != "__main__":
        return list(own_globals(function).items())
    code = (ModuleType, FunctionType, type)
    return [(n, v) for n, v in named_globals(function).items() if not isinstance(v, code)]


def _cells(function: FunctionType) -> Iterator[tuple[str, Any]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            yield name, cell.cell_contents
        except ValueError:  # nothing was bound to it yet
            continue


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


def _bound_call(function: Any) -> list[tuple[str, Any]]:
    """What a module that is a hook itself mentions in its forward."""
    forward = function.forward if isinstance(function, torch.nn.Module) else None
    return _bound(forward) if isinstance(forward, MethodType) else []


def _is_part_of_the_model(value: Any) -> bool:
    parts = (torch.nn.Module, torch.Tensor, torch.optim.Optimizer, RemovableHandle)
    return isinstance(value, (*parts, ModuleType, type))


def _is_of_the_users(value: Any) -> bool:
    """Whether the contents of an object are the user's affair and no library's."""
    if type(value) is SimpleNamespace:
        return True
    root = type(value).__module__.partition(".")[0]
    return root not in ("torch", "modpack") and root not in sys.stdlib_module_names
