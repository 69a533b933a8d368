"""Inspection of live objects and their code without executing any of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, partial, partialmethod
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from modpack.core.graph import Location
from modpack.environment.finder import is_a
from modpack.environment.importers import module_dict

_MAX_WRAPPERS = 100


def namespace_of_file(module: object, location: Location) -> Mapping[str, Any]:
    """Return the namespace of a live module that was loaded from a location, or an empty one.

    A module that LazyLoader loads on first access has not run yet.
    """
    kind = type(module)
    if not issubclass(kind, ModuleType) or kind.__getattribute__ is not ModuleType.__getattribute__:
        return {}
    live = module_dict(module)
    # A loader may have read another file than the spec names.
    read = module_dict(live.get("__loader__")).get("path")
    is_same = location.file is not None and location.file in (live.get("__file__"), read)
    return live if is_same else {}


def unwrap_functions(value: Any) -> Iterator[FunctionType]:
    """Yield the functions that a possibly decorated object wraps, outermost first."""
    todo: list[Any] = [value]
    seen: set[int] = set()
    while todo and len(seen) < _MAX_WRAPPERS:
        each = todo.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        # functools.wraps sets __wrapped__; other decorators keep the function in a closure.
        if is_a(each, FunctionType):
            yield each
            todo += [cell.cell_contents for cell in each.__closure__ or () if _holds_function(cell)]
        todo += list(_wrapped(each))


def _holds_function(cell: Any) -> bool:
    try:
        return is_a(cell.cell_contents, (FunctionType, staticmethod, classmethod))
    except ValueError:  # the cell is empty
        return False


def _wrapped(value: Any) -> Iterator[Any]:
    if is_a(value, (FunctionType, staticmethod, classmethod)) or callable(value):
        own = module_dict(value)
        if "__wrapped__" in own:
            yield own["__wrapped__"]
    if is_a(value, (staticmethod, classmethod)):
        yield value.__func__
    elif is_a(value, property):
        yield from filter(None, (value.fget, value.fset, value.fdel))
    elif is_a(value, (partial, partialmethod, cached_property)):
        yield value.func


def nested_codes(code: CodeType, deep: bool = True) -> Iterator[CodeType]:
    """Yield nested code objects; those of generic classes and functions are one level deeper."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            if deep or inner.co_name.startswith("<generic parameters"):
                yield from nested_codes(inner, deep)


def absolute_file(file: str) -> str:
    """Return the absolute path of a code's file. The names of cells are returned unchanged."""
    return file if file.startswith("<") else str(Path(file).absolute())
