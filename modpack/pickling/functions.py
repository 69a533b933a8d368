"""Functions by source: how a lambda or a nested function goes through a pickle.

A function is made in two steps, so that it may refer to itself, or to an object that refers
to it: first an empty one from its text, then its cells, defaults and attributes are filled
in. A function of an importable module uses that module's globals; one of ``__main__`` or of a
notebook gets a namespace of its own, with the globals that it names.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import io
import linecache
import sys
import zlib
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from modpack.pickling.functiontext import FunctionText, compiled_function, text_of
from modpack.pickling.rebuild import named_in_packages

__all__ = [
    "SCRIPTS",
    "GlobalNames",
    "attribute_of",
    "closed_over",
    "fill_function",
    "home_module",
    "make_cell",
    "make_function",
    "make_method",
    "named_globals",
    "parts_of",
]


SCRIPTS = ("__main__", "__mp_main__")
"""What the script that runs is called, and in processes that :mod:`multiprocessing` spawned."""


@named_in_packages
class GlobalNames(dict[str, Any]):
    """The globals of functions that have no module to be imported with them.

    Attributes:
        builtins: what the functions see as builtins: those of a package while one is loaded,
            so that their import statements find what the package holds.
    """

    builtins: Any = builtins


def home_module(function: FunctionType) -> ModuleType | None:
    """The importable module whose globals a function uses; None for those of scripts."""
    # not its __module__: a decorator's wrapper carries that of the function inside
    module = sys.modules.get(str(function.__globals__.get("__name__")))
    if module is None or module.__name__ in SCRIPTS:
        return None
    return module if vars(module) is function.__globals__ else None


def parts_of(function: FunctionType, module: object, shared: GlobalNames | None) -> tuple[Any, ...]:
    """What pickle needs to make a function again (the six-part form of ``__reduce__``).

    Args:
        function: the function.
        module: the module whose globals it uses; None if it cannot be imported.
        shared: the namespace for the globals of a function without a module.

    Raises:
        NoSourceError: its source cannot be had.
    """
    text = text_of(function)
    identity = (function.__name__, function.__qualname__, function.__module__ or "__main__")
    fields = (text.source, text.is_lambda, text.name, text.free, text.flags, text.class_name)
    cells = function.__closure__ or ()
    state = {
        "cells": dict(closed_over(function)),
        "defaults": function.__defaults__,
        "kwdefaults": function.__kwdefaults__,
        "doc": function.__doc__,
        "annotations": _plain_annotations(function),
        **_attributes(function),
        "globals": named_globals(function) if module is None else {},
    }
    home = shared if module is None else module
    arguments = ((*fields, text.line), identity, home, cells)
    return make_function, arguments, state, None, None, fill_function


def _attributes(function: FunctionType) -> dict[str, Any]:
    """A function's attributes; of those by which it knows itself by its address, the names."""
    own = [name for name, value in function.__dict__.items() if _is(value, id(function))]
    others = {name: value for name, value in function.__dict__.items() if name not in own}
    return {"attributes": others, "identities": tuple(own)} if own else {"attributes": others}


def _is(value: object, number: int) -> bool:
    return type(value) is int and value == number


@named_in_packages
def make_cell() -> CellType:
    """Make a closure's cell, empty until a function fills it.

    A cell is pickled as an object of its own, for functions may share it: what one binds with
    ``nonlocal``, the other one sees.
    """
    return CellType()


@named_in_packages
def make_function(
    fields: tuple[Any, ...],
    identity: tuple[str, str, str],
    home: Any,
    cells: tuple[CellType, ...],
) -> FunctionType:
    """Make a function from its text, with cells that may still be empty.

    Args:
        fields: the fields of a :class:`FunctionText`.
        identity: its ``__name__``, its ``__qualname__`` and its ``__module__``.
        home: the module whose globals it uses, or a :class:`GlobalNames`.
        cells: of its closure, in the order of the text's free variables.
    """
    text = FunctionText(*fields)
    name, qualname, module = identity
    filename = _shown_source(text, f"{module}:{text.line} {qualname}")
    code = compiled_function(text, filename)
    by_name = dict(zip(text.free, cells, strict=True))
    namespace = home if isinstance(home, GlobalNames) else vars(home)
    if isinstance(home, GlobalNames):
        home.setdefault("__builtins__", home.builtins)
        home.setdefault("__name__", module)
    function = FunctionType(
        code, namespace, name, None, tuple(by_name[each] for each in code.co_freevars)
    )
    function.__qualname__ = qualname
    function.__module__ = str(namespace.get("__name__", module))
    return function


@named_in_packages
def make_method(function: Callable[..., Any], owner: object) -> MethodType:
    """Bind a function to an object of whose class it is no attribute."""
    return MethodType(function, owner)


def attribute_of(method: MethodType) -> str | None:
    """The name under which a method's object has it; None if it was bound by hand.

    The function's own name may be another one: for ``__private`` methods, aliases, and what
    a decorator returned.
    """
    owner, function = method.__self__, method.__func__
    kind = owner if isinstance(owner, type) else type(owner)
    first = getattr(function, "__name__", "")
    for name in dict.fromkeys((first, *(name for each in kind.__mro__ for name in vars(each)))):
        # on the class only: what is set on the object itself is not there when it is made again
        found = inspect.getattr_static(kind, name, None)
        if getattr(found, "__func__", found) is function:
            return name
    return None


@named_in_packages
def fill_function(function: FunctionType, state: dict[str, Any]) -> None:
    """Fill in what a function refers to; see :func:`make_function`."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        if name in state["cells"]:
            cell.cell_contents = state["cells"][name]
    function.__defaults__ = state["defaults"]
    function.__kwdefaults__ = state["kwdefaults"]
    function.__doc__ = state["doc"]
    function.__annotations__ = state["annotations"]
    function.__dict__.update(state["attributes"])
    function.__dict__.update(dict.fromkeys(state.get("identities", ()), id(function)))
    for name, value in state["globals"].items():
        function.__globals__.setdefault(name, value)


def named_globals(function: FunctionType) -> dict[str, Any]:
    """Those globals of its module that a function, or a function inside it, uses."""
    names: dict[str, Any] = {}
    todo: list[CodeType] = [function.__code__]
    while todo:
        code = todo.pop()
        for instruction in dis.get_instructions(code):
            name = instruction.argval
            if instruction.opname in _USES_GLOBAL and name in function.__globals__:
                names.setdefault(name, function.__globals__[name])
        todo.extend(constant for constant in code.co_consts if isinstance(constant, CodeType))
    return names


_USES_GLOBAL = frozenset({"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME"}) | {
    "LOAD_FROM_DICT_OR_GLOBALS"
}
"""The last two stand in the bodies of classes."""


def closed_over(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Closure variables and what they are bound to; not those that are bound to nothing yet."""
    cells: tuple[CellType, ...] = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue


def _plain_annotations(function: FunctionType) -> dict[str, Any]:
    """Annotations that are text; live types would drag in modules that no call needs."""
    return {name: note for name, note in function.__annotations__.items() if isinstance(note, str)}


def _shown_source(text: FunctionText, place: str) -> str:
    """Let tracebacks and :mod:`inspect` show the source; returns the name to compile it under.

    The lines keep the numbers that they have in the file that they come from. The line before
    them makes them parse, so that the function, and those inside it, can be saved again.
    """
    before = "\n"
    if text.is_lambda:
        before = "(\n"
    elif text.source[:1].isspace():
        before = f"class {text.class_name}:\n" if text.class_name else "if True:\n"
    content = f"{text.source}\n" + (")\n" if text.is_lambda and text.line > 1 else "")
    filename = f"<modpack {place} {zlib.crc32(content.encode()):08x}>"
    above = ["\n"] * (text.line - 2) + [before] if text.line > 1 else []
    lines = above + io.StringIO(content).readlines()
    linecache.cache[filename] = (len(content), None, lines, filename)
    return filename
