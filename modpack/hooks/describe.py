"""What a hook calls, in words that need no torch to be read."""

from __future__ import annotations

import functools
import textwrap
from types import BuiltinFunctionType, FunctionType, MethodType

from modpack.core.hookspec import CallableSpec
from modpack.pickling.functiontext import NoSourceError, text_of

__all__ = ["describe", "state_of"]


def describe(hook: object, importable: bool) -> CallableSpec:
    """Describe a callable.

    Args:
        hook: the callable.
        importable: whether it is a function that can be imported by its name.
    """
    if isinstance(hook, FunctionType) and not importable:
        return _by_source(hook)
    by = "reference" if isinstance(hook, (FunctionType, BuiltinFunctionType, type)) else "object"
    return CallableSpec(by, name_of(hook), _source_of_inner(hook), None, tuple(state_of(hook)))


def name_of(hook: object) -> str:
    """What to call a callable: its qualified name, or that of what is inside it."""
    if isinstance(hook, functools.partial):
        return f"partial of {name_of(hook.func)}"
    if isinstance(hook, MethodType):
        return f"{type(hook.__self__).__module__}.{hook.__func__.__qualname__} (bound)"
    qualname = getattr(hook, "__qualname__", None)
    if isinstance(qualname, str):
        return f"{getattr(hook, '__module__', None)}.{qualname}"
    return f"instance of {type(hook).__module__}.{type(hook).__qualname__}"


def state_of(hook: object) -> dict[str, object]:
    """What a callable carries along: closure variables, attributes, bound arguments."""
    if isinstance(hook, functools.partial):
        bound = {f"args[{index}]": value for index, value in enumerate(hook.args)}
        return {**state_of(hook.func), **bound, **hook.keywords}
    if isinstance(hook, MethodType):
        return {"self": hook.__self__}
    if isinstance(hook, FunctionType):
        cells = zip(hook.__code__.co_freevars, hook.__closure__ or (), strict=True)
        return {name: cell.cell_contents for name, cell in cells if _is_bound(cell)}
    attributes = getattr(hook, "__dict__", None)
    return dict(attributes) if isinstance(attributes, dict) else {}


def _is_bound(cell: object) -> bool:
    try:
        cell.cell_contents  # type: ignore[attr-defined]  # noqa: B018
    except ValueError:
        return False
    return True


def _by_source(function: FunctionType) -> CallableSpec:
    place = f"{function.__module__}:{function.__code__.co_firstlineno}"
    try:
        source = textwrap.dedent(text_of(function).source)
    except NoSourceError:
        source = None  # pickling it reports that as an error, with the path to it
    return CallableSpec("source", name_of(function), source, place, tuple(state_of(function)))


def _source_of_inner(hook: object) -> str | None:
    """The source of a function inside a partial or a decorator, if that has no name."""
    inner = getattr(hook, "func", None) if isinstance(hook, functools.partial) else None
    if isinstance(inner, FunctionType) and "<" in inner.__qualname__:
        return _by_source(inner).source
    return None
