"""Looking at what is loaded, without waking anything up."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TypeGuard, cast

__all__ = ["contents_of", "is_a", "is_blocked"]


def is_a(value: object, kinds: type | tuple[type, ...]) -> TypeGuard[Any]:
    """Whether an object is of a class, by its type alone.

    ``isinstance`` also believes what an object calls its ``__class__``; a proxy, as of a context
    variable or of a module to be loaded later, runs code to answer, or fails.

    >>> is_a(True, int), is_a(int, type)
    (True, True)
    """
    return issubclass(type(value), kinds)


def contents_of(module: object) -> Mapping[str, object]:
    """What a module binds; empty for an object in ``sys.modules`` that keeps nothing.

    Asks the object itself and not its class: a lazily loaded module
    (:class:`importlib.util.LazyLoader`) would load on any other question.

    >>> contents_of(sys)["__name__"], contents_of(None)
    ('sys', {})
    """
    if module is None:  # most of what is asked for is not loaded, and failing takes its time
        return {}
    try:
        return cast(Mapping[str, object], object.__getattribute__(module, "__dict__"))
    except AttributeError:
        return {}


def is_blocked(module: str) -> bool:
    """Whether ``sys.modules`` says that a module must not be imported (None in its place)."""
    return module in sys.modules and sys.modules[module] is None
