"""Descriptions of hooks: the callables and their state, the targets' names, the user's choice."""

from __future__ import annotations

import ast
import functools
import textwrap
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, TypeGuard

import torch

from modpack.core.hookspec import CallableSpec, HookSpec
from modpack.core.names import dotted
from modpack.discovery.importers import local_path
from modpack.hooks.ddp import CommHook
from modpack.hooks.graph import CaptureGrad
from modpack.hooks.graph_parts import GraphPart
from modpack.pickling.base import has_script_definitions
from modpack.pickling.functions import (
    SCRIPTS,
    FunctionText,
    GlobalNames,
    NoSourceError,
    closed_over,
    find_function_text,
    named_globals,
)
from modpack.pickling.object_paths import iter_objects, path_to

_IsImportable = Callable[[FunctionType], bool]


def describe(hook: object, is_importable: _IsImportable) -> CallableSpec:
    """Describe a callable.

    Args:
        hook: the callable.
        is_importable: tells which functions can be imported by their names.
    """
    is_builtin = isinstance(hook, BuiltinFunctionType) and not _is_bound_builtin(hook)
    is_named = isinstance(hook, FunctionType) and is_importable(hook)
    if is_named or is_builtin or isinstance(hook, type):
        return CallableSpec("reference", name_of(hook))
    texts = dict(_texts(hook, is_importable))
    sources = dict.fromkeys(map(_readable, texts.values()))
    return CallableSpec(
        by="source" if isinstance(hook, FunctionType) else "object",
        name=name_of(hook),
        source="\n\n".join(sources) or None,  # pickling reports it if there should be one
        place=_place(texts),
        state=tuple(state_of(hook)),
    )


def name_of(hook: object) -> str:
    """What to call a callable: its qualified name, or that of what is inside it."""
    if isinstance(hook, functools.partial):
        return f"partial of {name_of(hook.func)}"
    if isinstance(hook, MethodType):
        return f"{name_of(hook.__func__)} (bound)"
    qualname = getattr(hook, "__qualname__", None)
    if _is_bound_builtin(hook):
        return f"{_module_of(type(hook.__self__))}.{qualname} (bound)"
    if isinstance(hook, FunctionType):
        hook = _innermost(hook)
    if isinstance(qualname, str):
        return f"{_module_of(getattr(hook, '__objclass__', hook))}.{qualname}"
    return f"instance of {_module_of(type(hook))}.{type(hook).__qualname__}"


def state_of(hook: object) -> dict[str, object]:
    """What a callable carries along: closure variables, attributes, bound arguments."""
    if isinstance(hook, functools.partial):
        bound = {f"args[{index}]": value for index, value in enumerate(hook.args)}
        return {**state_of(hook.func), **bound, **hook.keywords}
    if isinstance(hook, MethodType) or _is_bound_builtin(hook):
        return {"self": hook.__self__}
    if isinstance(hook, FunctionType):
        return dict(closed_over(hook))
    attributes = getattr(hook, "__dict__", None)
    return dict(attributes) if isinstance(attributes, dict) else {}


def _is_bound_builtin(hook: object) -> TypeGuard[BuiltinFunctionType]:
    """Whether it is a method, written in C, of an object: ``seen.append``."""
    if not isinstance(hook, BuiltinFunctionType):
        return False
    return not isinstance(hook.__self__, (type, ModuleType, type(None)))


def _texts(
    hook: object, is_importable: _IsImportable
) -> Iterator[tuple[FunctionType, FunctionText]]:
    """The functions that travel by source with a callable, its own first: what an auditor reads.

    Decorators and partials hold the user's function inside; functions without a module bring
    along the ones that they call.
    """
    todo, seen = [hook], set()
    while todo:
        part = todo.pop(0)
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, functools.partial):
            todo.extend((part.func, *part.args, *part.keywords.values()))
        elif isinstance(part, MethodType):
            todo.append(part.__func__)
        elif isinstance(part, FunctionType) and not is_importable(part):
            try:
                yield part, find_function_text(part)
            except NoSourceError:  # pickling it reports that as an error, with the path to it
                continue
            todo.extend(value for _, value in closed_over(part))
            todo.append(_wrapped_by(part))
            todo.extend(named_globals(part).values() if part.__module__ in SCRIPTS else ())
        elif not isinstance(part, FunctionType):
            todo.append(_wrapped_by(part))


def _place(texts: dict[FunctionType, FunctionText]) -> str | None:
    """Where the user's function is: what a decorator of another file has wrapped, if that is told.

    The module is that of the code. A decorator's wrapper carries the name of what it has wrapped.
    """
    for function in texts:
        inside = _innermost(function)
        shown = inside if inside in texts else function
        module = local_path(str(shown.__globals__.get("__name__")))
        return f"{module}:{texts[shown].line}"
    return None


def _wrapped_by(part: object) -> object:
    """What :func:`functools.wraps` has noted; asked of no object that may answer by itself."""
    attributes = getattr(part, "__dict__", None)
    return attributes.get("__wrapped__") if isinstance(attributes, dict) else None


def _innermost(function: FunctionType) -> FunctionType:
    """The function behind wrappers that carry its name."""
    passed = {function}
    while isinstance(inside := _wrapped_by(function), FunctionType) and inside not in passed:
        passed.add(function := inside)
    return function


def _readable(text: FunctionText) -> str:
    """A text without its common indentation, unless that would change a string in it."""
    dedented = textwrap.dedent(text.source)
    if text.is_lambda or dedented == text.source:
        return text.source
    exact = ast.parse(f"if True:\n{text.source}").body[0]
    inside = exact.body[0] if isinstance(exact, ast.If) else exact
    try:
        shifted = ast.parse(dedented).body[0]
    except SyntaxError:  # a line inside a string is indented less than the definition
        return text.source
    return dedented if ast.dump(inside) == ast.dump(shifted) else text.source


def _module_of(obj: object) -> str:
    """The module path of a function or class; for a packaged one, that inside its package."""
    return local_path(str(getattr(obj, "__module__", None)))


_MAX_PATHS = 16
"""So many paths to one module are followed: shared modules in shared modules multiply."""


class ObjectPaths:
    """The paths to every module, parameter and buffer of a saved object.

    Args:
        root: the saved object.
        extras: other roots by name, such as the optimizer.
    """

    def __init__(self, root: Any, extras: dict[str, Any]) -> None:
        self._roots = [("", root), *extras.items()]
        self._paths: dict[int, list[str]] = {id(extra): [name] for name, extra in extras.items()}
        self._unreachable = 0
        for name, each in self._roots:
            for module in _modules_in(each):
                if id(module) not in self._paths:  # it is inside of none before it
                    path = path_to(each, module, name) or ""
                    self._name_parts(path.lstrip("."), module)

    def of(self, target: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The canonical path of a target, or of each member of a group, and the other paths."""
        if target is None:
            return (), ()
        if isinstance(target, list):
            return tuple(self._paths_to(member)[0] for member in target), ()
        canonical, *aliases = self._paths_to(target)
        return (canonical,), tuple(aliases)

    @staticmethod
    def hook_name(target: tuple[str, ...], kind: str, position: int) -> str:
        """A hook's name: ``layer1.conv/forward/0``; without a target, ``global.forward/0``."""
        parts = [part for part in ("+".join(target), kind, str(position)) if part]
        return "/".join(parts)

    def _paths_to(self, target: Any) -> list[str]:
        if id(target) not in self._paths:
            self._paths[id(target)] = [self._searched(target)]
        return self._paths[id(target)]

    def _searched(self, target: Any) -> str:
        for name, root in self._roots:
            found = path_to(root, target, name)
            if found is not None:
                return found.lstrip(".")
        self._unreachable += 1
        return f"({type(target).__name__} {self._unreachable}, not reachable by attributes)"

    def _name_parts(self, path: str, module: torch.nn.Module) -> None:
        """Name a module's parts as ``named_modules`` and ``named_parameters`` do."""
        todo = [(path, module)]
        while todo:
            path, module = todo.pop()
            known = self._paths.setdefault(id(module), [])
            if len(known) == _MAX_PATHS:
                continue
            known.append(path)
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None:
                    self._paths.setdefault(id(tensor), []).append(dotted(path, name))
            children = [(n, child) for n, child in module._modules.items() if child is not None]
            todo.extend((dotted(path, name), child) for name, child in reversed(children))


def _modules_in(root: Any) -> Iterator[torch.nn.Module]:
    """The modules in an object, each before those inside it."""
    if isinstance(root, torch.nn.Module):
        yield root
    elif not isinstance(root, torch.optim.Optimizer):
        yield from (part for part in iter_objects(root) if isinstance(part, torch.nn.Module))


def functions_of(hook: Any) -> dict[str, Any]:
    """The user's callables behind a hook, by the name of the argument that took them."""
    if isinstance(hook, GraphPart):
        return hook.attachment.spec.functions
    if isinstance(hook, CommHook):
        return {"hook": hook.function} if callable(hook.function) else {}
    return {"hook": hook}


def carried_by(hook: Any) -> dict[str, Any]:
    """What was registered together with the callables."""
    if isinstance(hook, GraphPart) and isinstance(hook.attachment.spec, CaptureGrad):
        return {"store": hook.attachment.spec.store}
    if isinstance(hook, CommHook):
        return {"state": hook.state}
    return {}


def state_of_hook(hook: Any) -> dict[str, Any]:
    """What a hook carries along, by name.

    These are closure variables, attributes of objects, bound arguments, and those globals of
    functions without an importable module that are no code.
    """
    state = carried_by(hook)
    for function in functions_of(hook).values():
        state.update(own_globals(function))
        state.update(state_of(function))
    return state


def own_globals(function: Any) -> dict[str, Any]:
    """The globals that travel with a function because its module cannot be imported.

    Without modules, classes and functions.
    """
    if not isinstance(function, FunctionType):
        return {}
    namespace = function.__globals__
    travel = isinstance(namespace, GlobalNames) or has_script_definitions(namespace)
    if not travel and function.__module__ not in SCRIPTS:
        return {}
    code = (ModuleType, FunctionType, type)
    return {n: v for n, v in named_globals(function).items() if not isinstance(v, code)}


def describe_hook(hook: Any, is_importable: _IsImportable) -> CallableSpec:
    """Describe a hook by the user's callables behind it."""
    functions = functions_of(hook)
    carried = tuple(carried_by(hook))
    if not functions:
        return CallableSpec("object", _name_of_own(hook), state=carried)
    parts = {name: describe(each, is_importable) for name, each in functions.items()}
    if len(parts) > 1:
        return _together(parts)
    (one,) = parts.values()
    return one._replace(state=(*carried, *one.state))


def _name_of_own(hook: Any) -> str:
    """The name of what torch or modpack does by itself."""
    if isinstance(hook, CommHook):
        return f"torch.distributed.BuiltinCommHookType.{hook.function}"
    return f"modpack.hooks.{type(hook.attachment.spec).__name__}"


def _together(parts: dict[str, CallableSpec]) -> CallableSpec:
    """One description for several callables: their sources under each other."""
    sources = [f"# {name}\n{part.source}" for name, part in parts.items() if part.source]
    ways = {part.by for part in parts.values()}
    return CallableSpec(
        by=ways.pop() if len(ways) == 1 else "object",
        name=", ".join(part.name for part in parts.values()),
        source="\n\n".join(sources) or None,
        place=next((part.place for part in parts.values() if part.place), None),
        state=tuple(dict.fromkeys(name for part in parts.values() for name in part.state)),
    )


HookChoice = bool | Iterable[str] | Callable[[HookSpec], bool]
"""True, False, names of hooks, or a predicate over specs."""


def selector(choice: HookChoice) -> Callable[[HookSpec], bool]:
    """A predicate for a user's choice of hooks.

    Raises:
        TypeError: it is no choice.
    """
    if isinstance(choice, bool):
        return lambda spec: bool(choice)
    if isinstance(choice, Iterable):
        wanted = frozenset(_names_in(choice))
        return lambda spec: spec.name in wanted
    if callable(choice):
        return choice
    raise TypeError(
        f"hooks must be True, False, hook names or a predicate, not {type(choice).__name__}"
    )


def check_names(choice: HookChoice, specs: Iterable[HookSpec]) -> None:
    """Refuse names that no hook has.

    Raises:
        ValueError: tells the unknown names and the known ones.
    """
    if callable(choice) or not isinstance(choice, Iterable):
        return
    known = [spec.name for spec in specs]
    unknown = [name for name in _names_in(choice) if name not in known]
    if unknown:
        raise ValueError(
            f"no hook is called {', '.join(map(repr, unknown))}; there are: "
            + (", ".join(map(repr, known)) or "none")
        )


def _names_in(choice: Iterable[str]) -> list[str]:
    """The names of hooks in a choice; a text is one of them."""
    return [choice] if isinstance(choice, str) else list(choice)
