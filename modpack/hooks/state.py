"""What a hook calls and what it carries along, whatever it is wrapped in."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from modpack.core.hookspec import CallableSpec
from modpack.hooks.ddp import CommHook
from modpack.hooks.describe import describe, state_of
from modpack.hooks.graphparts import Part
from modpack.hooks.graphspecs import CaptureGrad
from modpack.pickling.definitions import is_of_script
from modpack.pickling.functions import GlobalNames, named_globals

__all__ = ["carried_by", "describe_hook", "functions_of", "own_globals", "state_of_hook"]


def functions_of(hook: Any) -> dict[str, Any]:
    """The user's callables behind a hook, by the name of the argument that took them."""
    if isinstance(hook, Part):
        return hook.attachment.spec.functions
    if isinstance(hook, CommHook):
        return {"hook": hook.function} if callable(hook.function) else {}
    return {"hook": hook}


def carried_by(hook: Any) -> dict[str, Any]:
    """What was registered together with the callables."""
    if isinstance(hook, Part) and isinstance(hook.attachment.spec, CaptureGrad):
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
    """The globals that travelled with a function, except modules, classes and functions."""
    if not isinstance(function, FunctionType):
        return {}
    if not isinstance(function.__globals__, GlobalNames) and not is_of_script(function.__globals__):
        return {}
    code = (ModuleType, FunctionType, type)
    return {n: v for n, v in named_globals(function).items() if not isinstance(v, code)}


def describe_hook(hook: Any, is_importable: Callable[[FunctionType], bool]) -> CallableSpec:
    """Describe a hook by the user's callables behind it."""

    def described(function: Any) -> CallableSpec:
        importable = isinstance(function, FunctionType) and is_importable(function)
        return describe(function, importable)

    functions = functions_of(hook)
    if len(functions) == 1:
        one = described(*functions.values())
        carried = tuple(carried_by(hook))
        return CallableSpec(one.by, one.name, one.source, one.place, (*carried, *one.state))
    if not functions:
        return CallableSpec("object", _name_of_own(hook), state=tuple(carried_by(hook)))
    return _together({name: described(function) for name, function in functions.items()})


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
