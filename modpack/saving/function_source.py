"""Reduction of functions that cannot be imported, such as lambdas and nested functions.

Such a function is saved by its source. modpack verifies the source: it compiles the text and
compares the result with the live function's code, which also detects files that changed after
import.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import weakref
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from modpack.core.cell_magic import magic_texts
from modpack.pickling.functions import (
    SCRIPTS,
    FunctionText,
    GlobalNames,
    closed_over,
    codes_in,
    compiled_function,
    fill_function,
    make_function,
    named_globals,
    parsable,
)


class NoSourceError(ValueError):
    """No source is available for a function, or none that compiles to its code."""


def find_function_text(function: FunctionType) -> FunctionText:
    """Return a function's source.

    Raises:
        NoSourceError: If there is none, or the file has changed since it was imported.
    """
    code = function.__code__
    key = id(code)
    if key not in _KNOWN:
        text = _search_text(code, function)
        _KNOWN[key] = text, weakref.ref(code, lambda _: _KNOWN.pop(key, None))
    return _KNOWN[key][0]


_KNOWN: dict[int, tuple[FunctionText, object]] = {}
"""Sources by the id of live code objects: every closure of a definition shares one."""


def _search_text(code: CodeType, function: FunctionType) -> FunctionText:
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if not lines:
        for text in magic_texts():  # IPython's cell magics compile under a name without source
            magic = _match_text(text.splitlines(keepends=True), code)
            if magic is not None:
                return magic
        raise NoSourceError(f"there is no source for {code.co_filename!r}")
    found = _match_text(lines, code)
    if found is None:  # after a reload, the cache may be older than the module
        linecache.checkcache(code.co_filename)
        lines = linecache.getlines(code.co_filename, function.__globals__)
        found = _match_text(lines, code) or _match_packaged(lines, code, function.__globals__)
    if found is None and code.co_filename == "<string>":
        # Since Python 3.13, linecache has the text of python -c under this name of exec's code.
        raise NoSourceError(f"there is no source for {code.co_filename!r}")
    if found is None:
        raise NoSourceError(
            f"{code.co_filename}:{code.co_firstlineno} does not contain source that compiles to "
            "its code: the file has changed since import, or something rewrote the code"
        )
    return found


FUTURE_FLAGS = 0x1000000 | 0x800000 | 0x400000  # annotations, generator_stop, barry_as_FLUFL
"""Code flags that ``from __future__`` statements set."""


def _match_text(lines: list[str], code: CodeType) -> FunctionText | None:
    """Return the definition at the code's line that compiles to this code."""
    source = "".join(lines)
    try:
        tree, imported = _parsed(source)
    except (SyntaxError, ValueError, RecursionError) as failure:
        raise NoSourceError(f"{code.co_filename} cannot be parsed: {failure}") from failure
    for candidate in _candidates(source, tree, code):
        if same_code(compiled_function(candidate, code.co_filename, imported), code):
            return candidate
    return None


def _match_packaged(
    lines: list[str], code: CodeType, namespace: Mapping[str, Any]
) -> FunctionText | None:
    """Return a packaged definition, in which modpack has replaced import statements.

    Its text alone compiles to other code, so the whole module is compiled again.
    """
    loader: Any = namespace.get("__loader__")
    if "__modpack__" not in namespace or getattr(loader, "path", None) != code.co_filename:
        return None
    for each in codes_in(loader.source_to_code(loader.get_data(loader.path), loader.path)):
        starts = each.co_name, each.co_firstlineno
        if starts == (code.co_name, code.co_firstlineno) and same_code(each, code):
            source = "".join(lines)
            return next(reversed(list(_candidates(source, _parsed(source)[0], code))), None)
    return None


def parsable_text(function: FunctionType) -> str:
    """Return a function's source in a form that parses as a module. It is for analysis only.

    Raises:
        NoSourceError: If the source is not available.
    """
    return parsable(find_function_text(function))


@lru_cache(maxsize=8)
def _parsed(source: str) -> tuple[ast.Module, tuple[str, ...]]:
    """Return a module's tree, and the names that its import statements bind."""
    tree = ast.parse(source)
    names: dict[str, None] = {}
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            bound = (alias.asname or alias.name.partition(".")[0] for alias in node.names)
            names.update(dict.fromkeys(name for name in bound if name != "*"))
        elif isinstance(node, ast.Module | ast.stmt | ast.excepthandler | ast.match_case):
            if not isinstance(node, _Function | ast.ClassDef):
                todo.extend(ast.iter_child_nodes(node))
    return tree, tuple(names)


def _candidates(source: str, tree: ast.Module, code: CodeType) -> Iterator[FunctionText]:
    free, flags = code.co_freevars, code.co_flags & FUTURE_FLAGS
    for node, class_name in _functions(tree):
        if not _starts_at(node, code):
            continue
        text, name = _segment(source, node), getattr(node, "name", "<lambda>")
        for enclosing in dict.fromkeys((None, class_name)):
            is_lambda = isinstance(node, ast.Lambda)
            yield FunctionText(text, is_lambda, name, free, flags, enclosing, node.lineno)


_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def _functions(tree: ast.Module) -> Iterator[tuple[_Function, str | None]]:
    """Yield every definition with its enclosing class."""
    todo: list[tuple[ast.AST, str | None]] = [(tree, None)]
    while todo:
        node, class_name = todo.pop()
        if isinstance(node, _Function):
            yield node, class_name
        inner = node.name if isinstance(node, ast.ClassDef) else class_name
        todo.extend((child, inner) for child in ast.iter_child_nodes(node))


def _starts_at(node: _Function, code: CodeType) -> bool:
    """Return whether a definition matches a code object by name and position."""
    if not isinstance(node, ast.Lambda):
        first = min([d.lineno for d in node.decorator_list] + [node.lineno])
        return node.name == code.co_name and code.co_firstlineno in (first, node.lineno)
    if code.co_name != "<lambda>" or code.co_firstlineno != node.lineno:
        return False
    if not hasattr(code, "co_positions"):  # Python 3.10: use the first match on the line
        return True
    body = node.body
    inside = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
    positions = [(line, column) for line, _, column, _ in code.co_positions() if line and column]
    return all(inside[0] <= each <= inside[1] for each in positions)


def _segment(source: str, node: _Function) -> str:
    """Return the source of a definition, from ``def`` or ``lambda`` on."""
    segment = ast.get_source_segment(source, node) or ""
    if isinstance(node, ast.Lambda):
        return segment
    # The segment lacks the indentation of its first line, which the other lines have.
    line = source.split("\n")[node.lineno - 1]
    return line[: len(line) - len(line.lstrip())] + segment


def same_code(one: CodeType, other: CodeType) -> bool:
    """Return whether two code objects behave the same, regardless of their location."""
    if one.co_code != other.co_code or len(one.co_consts) != len(other.co_consts):
        return False
    if any(getattr(one, name) != getattr(other, name) for name in _COMPARED):
        return False
    if (one.co_flags ^ other.co_flags) & _CALLING_FLAGS:
        return False
    return all(
        same_code(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else _equal(a, b)
        for a, b in zip(one.co_consts, other.co_consts, strict=True)
    )


_COMPARED = (
    *("co_names", "co_varnames", "co_freevars", "co_cellvars"),
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount"),
)


_CALLING_FLAGS = 0x4 | 0x8 | 0x20 | 0x80 | 0x200  # *args, **kwargs, generator and async kinds


def _equal(one: object, other: object) -> bool:
    """Return whether two constants are equal: ``1`` is not ``True``, ``0.0`` is not ``-0.0``."""
    if type(one) is not type(other):
        return False
    if isinstance(one, str) and isinstance(other, str) and "<locals>" in one:
        # qualified names of inner functions and classes contain the enclosing definition
        return one.rpartition("<locals>.")[2] == other.rpartition("<locals>.")[2]
    return repr(one) == repr(other) or (isinstance(one, frozenset) and one == other)


def find_live_object(module: str, name: str) -> object:
    """Return the object of a dotted name in a module of this process, or None."""
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def is_found_by_name(obj: Any, name: str) -> bool:
    """Return whether pickle finds a class or function by its own module and name."""
    return find_live_object(str(obj.__module__), name) is obj


def is_made_by_python(cls: type) -> bool:
    """Return whether a class was created by Python code, unlike list and dict."""
    return bool(cls.__flags__ & 1 << 9)  # Py_TPFLAGS_HEAPTYPE


def globals_module(function: FunctionType) -> ModuleType | None:
    """Return the importable module with a function's globals; None for those of scripts."""
    # not __module__: a decorator's wrapper copies that from the wrapped function
    module = sys.modules.get(str(function.__globals__.get("__name__")))
    if module is None or module.__name__ in SCRIPTS:
        return None
    return module if vars(module) is function.__globals__ else None


def reduce_function(function: FunctionType, namespace: object) -> tuple[Any, ...]:
    """Return a function's six-part reduction; see :meth:`object.__reduce__`.

    Args:
        function: The function.
        namespace: The module with its globals, or a :class:`GlobalNames`.

    Raises:
        NoSourceError: If its source is not available.
    """
    text = find_function_text(function)
    identity = (function.__name__, function.__qualname__, function.__module__ or "__main__")
    itself = [n for n, v in function.__dict__.items() if type(v) is int and v == id(function)]
    state = {
        "cells": dict(closed_over(function)),
        "defaults": function.__defaults__,
        "kwdefaults": function.__kwdefaults__,
        "doc": function.__doc__,
        # Only string annotations: types would pull in modules that no call needs.
        "annotations": {n: t for n, t in function.__annotations__.items() if isinstance(t, str)},
        "attributes": {n: v for n, v in function.__dict__.items() if n not in itself},
        **({"identities": tuple(itself)} if itself else {}),
        "globals": named_globals(function) if isinstance(namespace, GlobalNames) else {},
    }
    arguments = (tuple(text), identity, namespace, function.__closure__ or ())
    return make_function, arguments, state, None, None, fill_function


def method_name(method: MethodType) -> str | None:
    """Return the attribute name of a method on its object's class; None if it has none.

    It may differ from the function's name: for ``__private`` methods, aliases, and functions that
    a decorator returned.
    """
    owner, function = method.__self__, method.__func__
    kind = owner if isinstance(owner, type) else type(owner)
    first = getattr(function, "__name__", "")
    for name in dict.fromkeys((first, *(name for each in kind.__mro__ for name in vars(each)))):
        # search the class only: attributes of the object are not set yet when it is re-created
        found = inspect.getattr_static(kind, name, None)
        if getattr(found, "__func__", found) is function:
            return name
    return None
