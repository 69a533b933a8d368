"""The user's choice of hooks, and the state that hooks refer to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, TypeGuard

from modpack.core.hookspec import HookSpec
from modpack.errors import listed
from modpack.hooks.ddp import CommHook
from modpack.hooks.graph import CaptureGrad
from modpack.hooks.graph_parts import GraphPart
from modpack.pickling.functions import SCRIPTS, GlobalNames, closed_over, named_globals
from modpack.pickling.scripts import has_script_definitions


def callable_state(hook: object) -> dict[str, object]:
    """Return what a callable refers to: closure variables, attributes, bound arguments."""
    if isinstance(hook, functools.partial):
        bound = {f"args[{index}]": value for index, value in enumerate(hook.args)}
        return {**callable_state(hook.func), **bound, **hook.keywords}
    if isinstance(hook, MethodType) or is_bound_builtin(hook):
        return {"self": hook.__self__}
    if isinstance(hook, FunctionType):
        return dict(closed_over(hook))
    attributes = getattr(hook, "__dict__", None)
    return dict(attributes) if isinstance(attributes, dict) else {}


def is_bound_builtin(hook: object) -> TypeGuard[BuiltinFunctionType]:
    """Return whether a callable is a C method of an object, such as ``seen.append``."""
    if not isinstance(hook, BuiltinFunctionType):
        return False
    # A function of a C module has the module as `__self__`, a class method the class, others None.
    return not isinstance(hook.__self__, (type, ModuleType, type(None)))


def hook_functions(hook: Any) -> dict[str, Any]:
    """Return the user's callables of a hook, by the name of their parameter."""
    if isinstance(hook, GraphPart):
        return hook.attachment.spec.functions
    if isinstance(hook, CommHook):
        return {"hook": hook.function} if callable(hook.function) else {}
    return {"hook": hook}


def bound_state(hook: Any) -> dict[str, Any]:
    """Return the objects that were registered together with the callables."""
    if isinstance(hook, GraphPart) and isinstance(hook.attachment.spec, CaptureGrad):
        return {"store": hook.attachment.spec.store}
    if isinstance(hook, CommHook):
        return {"state": hook.state}
    return {}


def hook_state(hook: Any) -> dict[str, Any]:
    """Return what a hook refers to, by name.

    This includes closure variables, attributes, bound arguments, and those globals of functions
    without an importable module that are not code.
    """
    state = bound_state(hook)
    for function in hook_functions(hook).values():
        state.update(_own_globals(function))
        state.update(callable_state(function))
    return state


def _own_globals(function: Any) -> dict[str, Any]:
    """Return the globals that are saved with a function because its module is not importable.

    Modules, classes, and functions are not included.
    """
    if not isinstance(function, FunctionType):
        return {}
    namespace = function.__globals__
    is_saved = isinstance(namespace, GlobalNames) or has_script_definitions(namespace)
    # Other functions use the globals of their module, which are not saved with the hook.
    if not is_saved and function.__module__ not in SCRIPTS:
        return {}
    code = (ModuleType, FunctionType, type)
    return {n: v for n, v in named_globals(function).items() if not isinstance(v, code)}


HookChoice = bool | Iterable[str] | Callable[[HookSpec], bool]
"""True, False, hook names, or a predicate over specs."""


def selector(choice: HookChoice) -> Callable[[HookSpec], bool]:
    """Return a predicate for a user's choice of hooks.

    Raises:
        TypeError: If the choice has another type.
    """
    if isinstance(choice, bool):
        return lambda spec: bool(choice)
    if isinstance(choice, Iterable):
        wanted = frozenset(_names_in(choice))
        return lambda spec: spec.name in wanted
    if callable(choice):
        return choice
    raise TypeError(
        f"hooks must be True, False, hook names, or a predicate, not {type(choice).__name__}"
    )


def check_names(choice: HookChoice, specs: Iterable[HookSpec]) -> None:
    """Check that every chosen name is the name of a hook.

    Raises:
        ValueError: If a name is unknown; the message lists the known ones.
    """
    if callable(choice) or not isinstance(choice, Iterable):
        return
    known = [spec.name for spec in specs]
    # A misspelled name would leave out its hook without a word.
    unknown = [name for name in _names_in(choice) if name not in known]
    if unknown:
        raise ValueError(
            f"unknown hook names {', '.join(map(repr, unknown))}; known names: "
            + (listed(map(repr, known), 10) or "none")
        )


def _names_in(choice: Iterable[str]) -> list[str]:
    """Return the hook names in a choice; a string is one name."""
    return [choice] if isinstance(choice, str) else list(choice)
