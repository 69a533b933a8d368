"""Descriptions of model hooks: their callables, sources, and targets."""

from __future__ import annotations

import ast
import functools
import textwrap
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch

from modpack.core.hookspec import CallableSpec
from modpack.core.names import dotted
from modpack.environment.importers import local_path
from modpack.hooks.choice import (
    bound_state,
    callable_state,
    hook_functions,
    is_bound_builtin,
)
from modpack.hooks.ddp import CommHook
from modpack.pickling.functions import (
    SCRIPTS,
    FunctionText,
    closed_over,
    named_globals,
)
from modpack.saving.function_source import NoSourceError, find_function_text
from modpack.saving.object_paths import iter_objects, path_to

_IsImportable = Callable[[FunctionType], bool]


def describe(hook: object, is_importable: _IsImportable) -> CallableSpec:
    """Describe a callable.

    Args:
        hook: The callable.
        is_importable: Returns whether a function can be imported by its name.
    """
    is_builtin = isinstance(hook, BuiltinFunctionType) and not is_bound_builtin(hook)
    is_named = isinstance(hook, FunctionType) and is_importable(hook)
    if is_named or is_builtin or isinstance(hook, type):
        return CallableSpec("reference", callable_name(hook))
    texts = dict(_texts(hook, is_importable))
    sources = dict.fromkeys(map(_readable, texts.values()))
    return CallableSpec(
        by="source" if isinstance(hook, FunctionType) else "object",
        name=callable_name(hook),
        source="\n\n".join(sources) or None,  # pickling reports a missing source
        location=_source_location(texts),
        state=tuple(callable_state(hook)),
    )


def callable_name(hook: object) -> str:
    """Return the qualified name of a callable, or of the callable inside it."""
    if isinstance(hook, functools.partial):
        return f"partial of {callable_name(hook.func)}"
    if isinstance(hook, MethodType):
        return f"{callable_name(hook.__func__)} (bound)"
    qualname = getattr(hook, "__qualname__", None)
    if is_bound_builtin(hook):
        return f"{_module_of(type(hook.__self__))}.{qualname} (bound)"
    if isinstance(hook, FunctionType):
        hook = _innermost(hook)
    if isinstance(qualname, str):
        return f"{_module_of(getattr(hook, '__objclass__', hook))}.{qualname}"
    return f"instance of {_module_of(type(hook))}.{type(hook).__qualname__}"


def _texts(
    hook: object, is_importable: _IsImportable
) -> Iterator[tuple[FunctionType, FunctionText]]:
    """Yield the functions that are saved by source with a callable, its own first, for auditors.

    Decorators and partials contain the user's function. Functions without a module are saved
    together with the functions that they call.
    """
    todo, seen = [hook], set()
    while todo:
        part = todo.pop(0)
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, functools.partial):
            # Arguments may be functions that the hook calls.
            todo.extend((part.func, *part.args, *part.keywords.values()))
        elif isinstance(part, MethodType):
            todo.append(part.__func__)
        elif isinstance(part, FunctionType) and not is_importable(part):
            try:
                yield part, find_function_text(part)
            except NoSourceError:  # pickling reports it as an error, with its path
                continue
            todo.extend(value for _, value in closed_over(part))
            todo.append(_wrapped_by(part))
            todo.extend(named_globals(part).values() if part.__module__ in SCRIPTS else ())
        elif not isinstance(part, FunctionType):
            todo.append(_wrapped_by(part))


def _source_location(texts: dict[FunctionType, FunctionText]) -> str | None:
    """Return the location of the user's function, if possible inside decorators.

    The module is that of the code, because a decorator's wrapper copies the wrapped function's
    ``__module__``.
    """
    for function in texts:
        inside = _innermost(function)
        shown = inside if inside in texts else function
        module = local_path(str(shown.__globals__.get("__name__")))
        return f"{module}:{texts[shown].line}"
    return None


def _wrapped_by(part: object) -> object:
    """Return the function that :func:`functools.wraps` recorded, without calling the object."""
    attributes = getattr(part, "__dict__", None)
    return attributes.get("__wrapped__") if isinstance(attributes, dict) else None


def _innermost(function: FunctionType) -> FunctionType:
    """Return the function inside all wrappers that carry its name."""
    passed = {function}
    while isinstance(inside := _wrapped_by(function), FunctionType) and inside not in passed:
        passed.add(function := inside)
    return function


def _readable(text: FunctionText) -> str:
    """Return source without its common indentation, unless that would change a string in it."""
    dedented = textwrap.dedent(text.source)
    if text.is_lambda or dedented == text.source:
        return text.source
    # A string over several lines contains the indentation, so that removing it changes the code.
    exact = ast.parse(f"if True:\n{text.source}").body[0]
    inside = exact.body[0] if isinstance(exact, ast.If) else exact
    try:
        shifted = ast.parse(dedented).body[0]
    except SyntaxError:  # a line of a string is indented less than the definition
        return text.source
    return dedented if ast.dump(inside) == ast.dump(shifted) else text.source


def _module_of(obj: object) -> str:
    """Return the module path of a function or class, relative to its package if it has one."""
    return local_path(str(getattr(obj, "__module__", None)))


_MAX_PATHS = 16
"""Maximum number of paths to one module. Nested shared modules multiply them."""


class ObjectPaths:
    """The paths to every module, parameter, and buffer of a saved object.

    Args:
        root: The saved object.
        extras: Other roots by name, such as the optimizer.
    """

    def __init__(self, root: Any, extras: dict[str, Any]) -> None:
        self._roots = [("", root), *extras.items()]
        self._paths: dict[int, list[str]] = {id(extra): [name] for name, extra in extras.items()}
        self._unreachable = 0
        for name, each in self._roots:
            for module in _iter_modules(each):
                if id(module) not in self._paths:  # not a submodule of an earlier one
                    path = path_to(each, module, name) or ""
                    self._name_parts(path.lstrip("."), module)

    def of(self, target: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the canonical path of a target or of each group member, and other paths."""
        if target is None:
            return (), ()
        if isinstance(target, list):
            return tuple(self._paths_to(member)[0] for member in target), ()
        canonical, *aliases = self._paths_to(target)
        return (canonical,), tuple(aliases)

    @staticmethod
    def hook_name(target: tuple[str, ...], kind: str, position: int) -> str:
        """Return a hook's name: ``layer1.conv/forward/0``, or ``global.forward/0``."""
        parts = [part for part in ("+".join(target), kind, str(position)) if part]
        return "/".join(parts)

    def _paths_to(self, target: Any) -> list[str]:
        if id(target) not in self._paths:
            self._paths[id(target)] = [self._search(target)]
        return self._paths[id(target)]

    def _search(self, target: Any) -> str:
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
            # Nested shared modules multiply paths. The parts of this one have enough names, too.
            if len(known) == _MAX_PATHS:
                continue
            known.append(path)
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None:
                    self._paths.setdefault(id(tensor), []).append(dotted(path, name))
            children = [(n, child) for n, child in module._modules.items() if child is not None]
            todo.extend((dotted(path, name), child) for name, child in reversed(children))


def _iter_modules(root: Any) -> Iterator[torch.nn.Module]:
    """Yield the modules in an object, each before its submodules."""
    if isinstance(root, torch.nn.Module):
        yield root
    elif not isinstance(root, torch.optim.Optimizer):
        yield from (part for part in iter_objects(root) if isinstance(part, torch.nn.Module))


def describe_hook(hook: Any, is_importable: _IsImportable) -> CallableSpec:
    """Describe a hook by its user's callables."""
    functions = hook_functions(hook)
    carried = tuple(bound_state(hook))
    if not functions:
        return CallableSpec("object", _builtin_name(hook), state=carried)
    parts = {name: describe(each, is_importable) for name, each in functions.items()}
    if len(parts) > 1:
        return _combine(parts)
    (one,) = parts.values()
    return one._replace(state=(*carried, *one.state))


def _builtin_name(hook: Any) -> str:
    """Return the name of a hook that torch or modpack implements."""
    if isinstance(hook, CommHook):
        return f"torch.distributed.BuiltinCommHookType.{hook.function}"
    return f"modpack.hooks.{type(hook.attachment.spec).__name__}"


def _combine(parts: dict[str, CallableSpec]) -> CallableSpec:
    """Return one description of several callables, with their sources joined."""
    sources = [f"# {name}\n{part.source}" for name, part in parts.items() if part.source]
    ways = {part.by for part in parts.values()}
    return CallableSpec(
        by=ways.pop() if len(ways) == 1 else "object",
        name=", ".join(part.name for part in parts.values()),
        source="\n\n".join(sources) or None,
        location=next((part.location for part in parts.values() if part.location), None),
        state=tuple(dict.fromkeys(name for part in parts.values() for name in part.state)),
    )
