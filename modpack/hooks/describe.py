"""What a hook calls, in words that need no torch to be read."""

from __future__ import annotations

import ast
import functools
import sys
import textwrap
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TypeGuard

from modpack.core.hookspec import CallableSpec
from modpack.pickling.functions import SCRIPTS, closed_over, named_globals
from modpack.pickling.functiontext import FunctionText, NoSourceError, text_of
from modpack.resolution.importers import local_path

__all__ = ["describe", "name_of", "state_of"]


def describe(hook: object, importable: bool) -> CallableSpec:
    """Describe a callable.

    Args:
        hook: the callable.
        importable: whether it is a function that can be imported by its name.
    """
    if importable or isinstance(hook, type) or _is_builtin_function(hook):
        return CallableSpec("reference", name_of(hook))
    texts = dict(_texts(hook))
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
    if isinstance(hook, MethodType):
        return {"self": hook.__self__}
    if _is_bound_builtin(hook):
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


def _is_builtin_function(hook: object) -> bool:
    return isinstance(hook, BuiltinFunctionType) and not _is_bound_builtin(hook)


def _texts(hook: object) -> Iterator[tuple[FunctionType, FunctionText]]:
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
        elif isinstance(part, FunctionType) and _needs_source(part):
            try:
                yield part, text_of(part)
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


def _needs_source(function: FunctionType) -> bool:
    """Whether a function cannot be imported under its name."""
    found: object = sys.modules.get(function.__module__ or "")
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is not function or function.__module__ in SCRIPTS


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
