"""Whether a statement of a script is the one that made a live class or function.

A script may have been edited since it was started, a cell of a notebook run again, a method
replaced. So nothing is believed: the source is compiled once more, and its code compared with
that of the live functions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cached_property, partial, partialmethod
from types import CodeType, FunctionType
from typing import Any

from modpack.discovery.definitions import Cell, Script, Statement
from modpack.packing.scriptsources import same_file
from modpack.pickling.functiontext import FUTURE_FLAGS, same_code
from modpack.resolution.live import contents_of, is_a

__all__ = ["Proof", "codes_in", "flags_of", "functions_in", "mangled", "resolved"]

_MISSING = object()
_MOST_WRAPPERS = 100


class Proof:
    """Compares the statements of a script with what lives in its namespace.

    Args:
        script: its source.
        namespace: its globals.
    """

    def __init__(self, script: Script, namespace: Mapping[str, Any]) -> None:
        self._script = script
        self._namespace = namespace
        self._compiled: dict[tuple[Cell, int], CodeType | None] = {}

    def is_function(self, value: Any, statement: Statement) -> bool:
        """Whether a function statement made an object, as far as its code tells.

        An object that a decorator made, and that holds no function of that name, may be.
        """
        made = list(functions_in(value))
        if self._has_code_of(made, statement):
            return True
        named = [each for each in made if each.__code__.co_name == statement.binds[0]]
        return not named and not (type(value) is FunctionType and not _is_decorated(statement))

    def is_class(self, kind: type, statement: Statement) -> bool:
        """Whether a class statement made a class, as far as its methods and bases tell."""
        body = self._code_of(statement, flags_of(kind))
        if body is None or not isinstance(statement.node, ast.ClassDef):
            return False
        return (
            all(self._fits(kind, method, body) for method in _methods(statement.node))
            and all(self._is_there(each, statement, body) for each in _own_methods(kind))
            and all(self._is_base(kind, base) for base in statement.node.bases)
        )

    def replaced(self, kind: type, statement: Statement) -> Iterator[str]:
        """The methods of a class that were replaced after it was made, by functions of others."""
        body = self._code_of(statement, flags_of(kind))
        if body is not None and isinstance(statement.node, ast.ClassDef):
            for method in _methods(statement.node):
                name = mangled(kind, method.name)
                live = vars(kind).get(name)
                if not method.decorator_list and not _holds(live, method, body):
                    yield name

    def _fits(self, kind: type, method: ast.FunctionDef, body: CodeType) -> bool:
        live = vars(kind).get(mangled(kind, method.name), _MISSING)
        if live is _MISSING:
            return bool(method.decorator_list)
        if _holds(live, method, body):
            return True
        own = f"{kind.__qualname__}.{method.name}"
        return not any(each.__qualname__ == own for each in functions_in(live))

    def _is_there(self, method: FunctionType, statement: Statement, body: CodeType) -> bool:
        """Whether a class statement holds a method's code, if the script does at all."""
        file = method.__code__.co_filename
        if not any(same_file(file, cell.file) for cell in self._script.cells):
            return True  # generated, by a decorator or a metaclass
        inside = same_file(file, statement.cell.file)
        return inside and any(same_code(code, method.__code__) for code in codes_in(body))

    def _is_base(self, kind: type, base: ast.expr) -> bool:
        found = resolved(base, self._namespace)
        bases = (*kind.__bases__, *getattr(kind, "__orig_bases__", ()))
        return not is_a(found, type) or any(each is found for each in bases)

    def _has_code_of(self, functions: list[FunctionType], statement: Statement) -> bool:
        for function in functions:
            code = self._code_of(statement, function.__code__.co_flags & FUTURE_FLAGS)
            if code is not None and same_code(code, function.__code__):
                return True
        return False

    def _code_of(self, statement: Statement, flags: int) -> CodeType | None:
        """The code of a class's body or of a function, compiled from the source as it is now."""
        module = self._module_code(statement.cell, flags)
        lines = (statement.line, statement.node.lineno)
        for code in codes_in(module, deep=False) if module is not None else ():
            if code.co_name == statement.binds[0] and code.co_firstlineno in lines:
                return code
        return None

    def _module_code(self, cell: Cell, flags: int) -> CodeType | None:
        if (cell, flags) not in self._compiled:
            flags_all = flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            tree = self._script.cells[cell]
            try:
                code = compile(tree, cell.file, "exec", flags_all, dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError):
                code = None
            self._compiled[cell, flags] = code
        return self._compiled[cell, flags]


def functions_in(value: Any) -> Iterator[FunctionType]:
    """The functions in an object that a decorator may have made of one, the outermost first."""
    todo: list[Any] = [value]
    seen: set[int] = set()
    while todo and len(seen) < _MOST_WRAPPERS:
        each = todo.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        if is_a(each, FunctionType):
            yield each
            todo += [cell.cell_contents for cell in each.__closure__ or () if _is_bound(cell)]
        todo += list(_wrapped(each))


def mangled(kind: type, name: str) -> str:
    """The name under which a class keeps what its body calls ``__name``."""
    is_private = name.startswith("__") and not name.endswith("__")
    return f"_{kind.__name__.lstrip('_')}{name}" if is_private else name


def resolved(expression: ast.expr, namespace: Mapping[str, Any]) -> Any:
    """What a dotted name stands for, looked up in modules only; None for anything else."""
    if isinstance(expression, ast.Name):
        return namespace.get(expression.id)
    if isinstance(expression, ast.Attribute):
        owner = resolved(expression.value, namespace)
        return getattr(owner, "__dict__", {}).get(expression.attr) if owner is not None else None
    return None


def _wrapped(value: Any) -> Iterator[Any]:
    if is_a(value, (FunctionType, staticmethod, classmethod)) or callable(value):
        own = contents_of(value)
        if "__wrapped__" in own:
            yield own["__wrapped__"]
    if is_a(value, (staticmethod, classmethod)):
        yield value.__func__
    elif is_a(value, property):
        yield from filter(None, (value.fget, value.fset, value.fdel))
    elif is_a(value, (partial, partialmethod, cached_property)):
        yield value.func


def _is_bound(cell: Any) -> bool:
    try:
        return is_a(cell.cell_contents, (FunctionType, staticmethod, classmethod))
    except ValueError:
        return False


def _is_decorated(statement: Statement) -> bool:
    return bool(getattr(statement.node, "decorator_list", []))


def _methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """The methods of a class body, of each name the last."""
    by_name = {
        each.name: each
        for each in node.body
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    yield from by_name.values()  # type: ignore[misc]  # asynchronous ones look alike


def _own_methods(kind: type) -> Iterator[FunctionType]:
    """The functions of a class whose code says that it was defined in its body."""
    for value in vars(kind).values():
        for function in functions_in(value):
            owner, _, name = function.__qualname__.rpartition(".")
            if owner == kind.__qualname__ and name == function.__code__.co_name:
                yield function
                break


def _holds(live: Any, method: ast.FunctionDef, body: CodeType) -> bool:
    """Whether a method, or what a decorator made of it, has the code of its definition."""
    lines = (method.lineno, *(each.lineno for each in method.decorator_list))
    codes = [
        code
        for code in codes_in(body, deep=False)
        if code.co_name == method.name and code.co_firstlineno in lines
    ]
    made = list(functions_in(live))
    return any(same_code(code, each.__code__) for code in codes for each in made)


def flags_of(value: Any) -> int:
    """The ``from __future__`` statements that were in force for a function or a class's methods."""
    here = getattr(value, "__module__", None)
    parts = list(vars(value).values()) if is_a(value, type) else [value]
    for part in parts:
        for function in functions_in(part):
            if function.__module__ == here:
                return function.__code__.co_flags & FUTURE_FLAGS
    return 0


def codes_in(code: CodeType, deep: bool = True) -> Iterator[CodeType]:
    """The codes in a code; those of generic classes and functions stand one level deeper."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            if deep or inner.co_name.startswith("<generic parameters"):
                yield from codes_in(inner, deep)
