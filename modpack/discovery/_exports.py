"""The names that a module exports: its ``__all__``, where that can be read."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from modpack.discovery._bindings import assigned_names, bindings
from modpack.discovery._constants import literal_strings

__all__ = ["literal_exports", "mentions_exports"]

_EXPORTS = "__all__"


def mentions_exports(statement: ast.stmt) -> bool:
    """Whether a statement assigns ``__all__`` or calls one of its methods."""
    if isinstance(statement, ast.Expr):
        return _called_method(statement.value) is not None
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return any((alias.asname or alias.name) == _EXPORTS for alias in statement.names)
    if isinstance(statement, ast.Delete):
        return any(_EXPORTS in assigned_names(target) for target in statement.targets)
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return False
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return any(_is_exports(node) for target in targets for node in ast.walk(target))
    return any(name == _EXPORTS for name, _ in bindings(statement))


def literal_exports(statements: Iterable[tuple[ast.stmt, bool]]) -> tuple[str, ...] | None:
    """The value of ``__all__`` after some statements, if all of them are literal.

    Args:
        statements: those that touch ``__all__``, in source order, each with whether it runs
            unconditionally. A conditional assignment adds to what is there: either may hold.
    """
    exported: tuple[str, ...] | None = None
    computed = False
    for statement, unconditional in statements:
        names = _names_after(statement, exported or ())
        starts_afresh = isinstance(statement, (ast.Assign, ast.AnnAssign)) and unconditional
        computed = names is None or (computed and not starts_afresh)
        if names is not None:
            exported = names if starts_afresh else _union(exported or (), names)
    return None if computed else exported


def _union(names: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*names, *more)))


def _names_after(statement: ast.stmt, before: tuple[str, ...]) -> tuple[str, ...] | None:
    """All that ``__all__`` holds after a statement; None if that is computed."""
    if isinstance(statement, ast.Assign):
        plain = all(_is_exports(target) for target in statement.targets)
        return _concatenated(statement.value, before) if plain else None
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        return _concatenated(statement.value, before)
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        more = _concatenated(statement.value, before)
        return None if more is None else before + more
    if isinstance(statement, ast.Expr):
        more = _added_by_call(statement.value, before)
        return None if more is None else before + more
    return None


def _added_by_call(call: ast.expr, before: tuple[str, ...]) -> tuple[str, ...] | None:
    method = _called_method(call)
    if not isinstance(call, ast.Call) or call.keywords:
        return None
    if method in ("sort", "reverse") and not call.args:
        return ()
    if len(call.args) != 1:
        return None
    argument = call.args[0]
    if method == "extend":
        return _concatenated(argument, before)
    if method == "append" and isinstance(argument, ast.Constant):
        return (argument.value,) if isinstance(argument.value, str) else None
    return None


def _concatenated(value: ast.expr, before: tuple[str, ...]) -> tuple[str, ...] | None:
    """The strings in a sum of literal lists and tuples, and of ``__all__`` itself."""
    names: list[str] = []
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            waiting.extend((node.right, node.left))
            continue
        strings = before if _is_exports(node) else literal_strings(node)
        if strings is None:
            return None
        names.extend(strings)
    return tuple(names)


def _called_method(node: ast.expr) -> str | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr if _is_exports(node.func.value) else None
    return None


def _is_exports(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == _EXPORTS
