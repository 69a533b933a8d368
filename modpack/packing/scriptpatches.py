"""What differs between a live class or function and what its definition alone would make."""

from __future__ import annotations

import abc
import ast
import enum
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from modpack.discovery.definitions import Statement
from modpack.packing.scriptchoice import Chooser
from modpack.packing.scriptproof import mangled
from modpack.pickling.definitions import Filling
from modpack.resolution.live import is_a

__all__ = ["patches_of"]

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def patches_of(name: str, statement: Statement, chooser: Chooser) -> Iterator[Filling]:
    """Values to set on a class or function once its definition was run.

    These are default values and class attributes that something else than a literal gave, and
    what was set or replaced later.

    Args:
        name: the name in the script.
        statement: its definition.
        chooser: knows the script and its globals.
    """
    value = chooser.namespace.get(name)  # type checkers know names that are not there
    node = statement.node
    if isinstance(node, _Function) and type(value) is FunctionType and not node.decorator_list:
        yield from _of_function((name,), value, node, chooser)
    elif isinstance(node, ast.ClassDef) and isinstance(value, type):
        yield from _of_class((name,), value, node, statement, chooser)


def _of_function(
    path: tuple[str, ...],
    function: FunctionType,
    node: ast.FunctionDef | ast.AsyncFunctionDef,
    chooser: Chooser,
) -> Iterator[Filling]:
    given = function.__defaults__ or ()
    if not _all_reproduced(node.args.defaults, given, chooser):
        yield Filling((*path, "__defaults__"), function.__defaults__)
    named = [d for d in node.args.kw_defaults if d is not None]
    if not _all_reproduced(named, tuple((function.__kwdefaults__ or {}).values()), chooser):
        yield Filling((*path, "__kwdefaults__"), function.__kwdefaults__)
    for name, value in vars(function).items():
        yield Filling((*path, name), value)


def _all_reproduced(expressions: list[ast.expr], values: tuple[Any, ...], chooser: Chooser) -> bool:
    if len(expressions) != len(values):
        return False
    return all(map(chooser.reproduces, expressions, values))


def _of_class(
    path: tuple[str, ...],
    kind: type,
    node: ast.ClassDef,
    statement: Statement,
    chooser: Chooser,
) -> Iterator[Filling]:
    own = vars(kind)
    if issubclass(kind, enum.Enum):
        return
    replaced = set(chooser.proof.replaced(kind, statement))
    for name in replaced & set(own):
        yield Filling((*path, name), own[name])
    for method in node.body:
        if isinstance(method, _Function):
            live = own.get(mangled(kind, method.name))
            bare = live.__func__ if is_a(live, (staticmethod, classmethod)) else live
            if type(bare) is FunctionType and method.name not in replaced and _is_bare(method):
                inner = (*path, mangled(kind, method.name))
                yield from _of_function(inner, bare, method, chooser)
    for name in _attributes_to_set(kind, node, chooser):
        if name not in replaced:
            yield Filling((*path, name), own[name])


def _is_bare(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether nothing but Python's own method decorators stand over a function."""
    names = [getattr(decorator, "id", None) for decorator in method.decorator_list]
    return all(name in ("staticmethod", "classmethod") for name in names)


def _attributes_to_set(kind: type, node: ast.ClassDef, chooser: Chooser) -> Iterator[str]:
    """The data among a class's attributes that its body alone would not give."""
    written = dict(_assigned_in(node))
    for name, value in vars(kind).items():
        if _is_dunder(name) or not _is_data(value) or name in _KEPT_BY_PYTHON:
            continue
        expression = written.get(name)
        if expression is not None:
            if not chooser.reproduces(expression, value):
                yield name
        elif name not in written and (_is_plain_class(kind) or _is_set(kind, name, chooser)):
            if not _binds(node, name):
                yield name


_KEPT_BY_PYTHON = frozenset({"_abc_impl"})


def _assigned_in(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None]]:
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id, each.value
        elif isinstance(each, ast.Assign):
            for target in each.targets:
                if isinstance(target, ast.Name):
                    yield target.id, each.value


def _binds(node: ast.ClassDef, name: str) -> bool:
    """Whether any statement of a class body, however nested, binds a name."""
    for each in ast.walk(node):
        bound = getattr(each, "name", None) == name
        if bound or (isinstance(each, ast.Name) and each.id == name and _stores(each)):
            return True
    return False


def _stores(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_data(value: Any) -> bool:
    return not is_a(value, (ModuleType, type)) and not hasattr(type(value), "__get__")


def _is_plain_class(kind: type) -> bool:
    """Whether attributes can be set on a class without further effects."""
    return type(kind) in (type, abc.ABCMeta) and not hasattr(kind, "_fields")  # a named tuple


def _is_set(kind: type, name: str, chooser: Chooser) -> bool:
    return (kind.__name__, name) in chooser.script.patched
