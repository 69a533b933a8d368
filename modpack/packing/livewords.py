"""Live values in words: as much of them as a note may say, which is stored in the package."""

from __future__ import annotations

from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from modpack.resolution.live import is_a

__all__ = ["is_plain", "shown"]

_ATOMS = (int, float, str, bytes, bool, complex, type(None), type(...))
_LONGEST = 40
_AROUND: tuple[tuple[type, str], ...] = (
    (partial, "func"),
    (property, "fget"),
    (staticmethod, "__func__"),
    (classmethod, "__func__"),
    (MethodType, "__func__"),
)
"""Python's own objects around a function, and the attribute that has it."""


def is_plain(value: Any) -> bool:
    """Whether a value is one that a literal can give, and that never changes."""
    if type(value) is tuple:
        return all(map(is_plain, value))
    return type(value) in _ATOMS


def shown(value: Any) -> str:
    """A value in a few words. Never a text: it may be a password.

    >>> shown(4), shown("secret"), shown((1, "a")), shown(len)
    ('4', 'another text', 'another tuple', "the built-in function 'len'")
    """
    if is_a(value, (str, bytes)):
        return "another text"
    if type(value) is tuple:
        return "another tuple"
    if is_plain(value):
        return repr(value) if len(repr(value)) <= _LONGEST else f"another {type(value).__name__}"
    if is_a(value, FunctionType):
        return _function(value)
    if is_a(value, BuiltinFunctionType):
        return f"the built-in function {value.__name__!r}"
    if is_a(value, type):
        return f"the class {value.__module__}.{value.__qualname__}"
    bare: Any = None
    for kind, name in _AROUND:
        if is_a(value, kind):
            bare = getattr(value, name)
    if is_a(bare, FunctionType):
        return f"a {type(value).__name__} of {_function(bare)}"
    return f"an object of {type(value).__module__}.{type(value).__qualname__}"


def _function(function: FunctionType) -> str:
    code = function.__code__
    place = f"{PurePath(code.co_filename).name}:{code.co_firstlineno}"
    # A wrapper calls itself what it wraps; its code does not (since Python 3.11).
    name = getattr(code, "co_qualname", code.co_name)
    return f"{function.__globals__.get('__name__')}.{name} ({place})"
