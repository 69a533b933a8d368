"""Functions by source: how a lambda or a nested function goes through a pickle.

A function is made in two steps, so that it may refer to itself, or to an object that refers
to it: first an empty one from its text, then its cells, defaults and attributes are filled
in. A function of an importable module uses that module's globals; one of ``__main__`` or of a
notebook gets a namespace of its own, with the globals that it names.
"""

from __future__ import annotations

import builtins
import linecache
import types
from types import CellType, CodeType, FunctionType
from typing import Any

from modpack.pickling.functiontext import FunctionText, compiled_function, text_of

__all__ = ["GlobalNames", "fill_function", "make_function", "named_globals", "parts_of"]


class GlobalNames(dict[str, Any]):
    """The globals of functions that have no module to be imported with them."""


def parts_of(
    function: FunctionType, module: object, shared: GlobalNames | None
) -> tuple[Any, ...]:
    """What pickle needs to make a function again (the six-part form of ``__reduce__``).

    Args:
        function: the function.
        module: the module whose globals it uses; None if it cannot be imported.
        shared: the namespace for the globals of a function without a module.

    Raises:
        NoSourceError: its source cannot be had.
    """
    text = text_of(function)
    place = f"{function.__module__}:{function.__code__.co_firstlineno}"
    identity = (function.__name__, function.__qualname__, place)
    fields = (text.source, text.is_lambda, text.name, text.free, text.flags, text.class_name)
    names = named_globals(function) if module is None else {}
    state = {
        "cells": [_contents(cell) for cell in function.__closure__ or ()],
        "defaults": function.__defaults__,
        "kwdefaults": function.__kwdefaults__,
        "doc": function.__doc__,
        "annotations": _plain_annotations(function),
        "attributes": dict(function.__dict__),
        "globals": names,
    }
    home = shared if module is None else module
    return make_function, (fields, identity, home), state, None, None, fill_function


def make_function(fields: tuple[Any, ...], identity: tuple[str, str, str], home: Any) -> Any:
    """Make a function with empty cells from its text.

    Pickles in packages name this function; its module path and signature are part of the
    archive format.

    Args:
        fields: the fields of a :class:`FunctionText`.
        identity: its ``__name__``, its ``__qualname__``, and where its source was.
        home: the module whose globals it uses, or a :class:`GlobalNames`.
    """
    text = FunctionText(*fields)
    name, qualname, place = identity
    filename = f"<modpack {place} {qualname}>"
    code = compiled_function(text, filename)
    _show_source(filename, text)
    namespace = home if isinstance(home, GlobalNames) else vars(home)
    if isinstance(home, GlobalNames):
        home.setdefault("__builtins__", builtins)
        home.setdefault("__name__", place.partition(":")[0])
    cells = tuple(CellType() for _ in code.co_freevars)
    function = FunctionType(code.replace(co_name=name), namespace, name, None, cells or None)
    function.__qualname__ = qualname
    function.__module__ = str(namespace.get("__name__", place.partition(":")[0]))
    return function


def fill_function(function: FunctionType, state: dict[str, Any]) -> None:
    """Fill in what a function refers to; see :func:`make_function`."""
    for cell, contents in zip(function.__closure__ or (), state["cells"], strict=True):
        if contents:
            cell.cell_contents = contents[0]
    function.__defaults__ = state["defaults"]
    function.__kwdefaults__ = state["kwdefaults"]
    function.__doc__ = state["doc"]
    function.__annotations__ = state["annotations"]
    function.__dict__.update(state["attributes"])
    for name, value in state["globals"].items():
        function.__globals__.setdefault(name, value)


def named_globals(function: FunctionType) -> dict[str, Any]:
    """Those globals of its module that a function, or a function inside it, mentions."""
    names: dict[str, Any] = {}
    todo: list[CodeType] = [function.__code__]
    while todo:
        code = todo.pop()
        for name in code.co_names:
            if name in function.__globals__ and name not in names:
                names[name] = function.__globals__[name]
        todo.extend(c for c in code.co_consts if isinstance(c, types.CodeType))
    return names


def _contents(cell: CellType) -> tuple[Any, ...]:
    """A cell's contents as a tuple: empty for a cell that nothing was bound to yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _plain_annotations(function: FunctionType) -> dict[str, Any]:
    """Annotations that are text; live types would drag in modules that no call needs."""
    return {name: note for name, note in function.__annotations__.items() if isinstance(note, str)}


def _show_source(filename: str, text: FunctionText) -> None:
    """Let tracebacks and :mod:`inspect` show the source."""
    lines = [line + "\n" for line in text.source.splitlines()]
    linecache.cache[filename] = (len(text.source), None, [_header(text), *lines], filename)


def _header(text: FunctionText) -> str:
    """The compiled text has the factory's line above it; keep line numbers in step."""
    return f"# {text.name}, with {', '.join(text.free)} closed over\n" if text.free else "#\n"
