"""The names that a statement binds."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

from modpack.discovery._wordlines import has_any

__all__ = ["BINDING", "assigned_names", "bindings", "binds_unseen"]

_BINDERS = ("__getattr__", "__dict__", "globals", "vars", "locals", "exec", "eval", "setattr")
_BINDS_UNSEEN = (
    *(re.compile(rf"{word}\b(?<!\w{word})") for word in (*_BINDERS, "modules")),
    re.compile(r"import\s*\(?\s*\*"),
)

_BINDING = frozenset(
    {ast.Assign, ast.AnnAssign, ast.AugAssign, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef}
    | {ast.For, ast.AsyncFor, ast.With, ast.AsyncWith, ast.Match}
)
if sys.version_info >= (3, 12):
    BINDING = _BINDING | {ast.TypeAlias}
else:
    BINDING = _BINDING
"""The statements that :func:`bindings` has something to say of."""


def bindings(statement: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    """The names that a statement binds itself, imports and nested statements left out.

    Yields:
        Each name with the expression that it is bound to, or None where the statement does
        not bind it to exactly one expression.
    """
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from _bound_to(target, statement.value)
    elif isinstance(statement, ast.AnnAssign):
        if statement.value is not None:
            yield from _bound_to(statement.target, statement.value)
    elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name, None
    elif isinstance(statement, (ast.AugAssign, ast.For, ast.AsyncFor)):
        yield from _bound_to(statement.target, None)
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        for item in statement.items:
            if item.optional_vars is not None:
                yield from _bound_to(item.optional_vars, None)
    elif isinstance(statement, ast.Match):
        for name in _captured_names(statement):
            yield name, None
    elif sys.version_info >= (3, 12) and isinstance(statement, ast.TypeAlias):
        yield from _bound_to(statement.name, None)


def binds_unseen(text: str) -> bool:
    """Whether a source has a word for binding names of the module that are not spelled in it."""
    return has_any(_BINDS_UNSEEN, text)


def _bound_to(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | None]]:
    sole = isinstance(target, ast.Name)
    for name in assigned_names(target):
        yield name, value if sole else None


def assigned_names(target: ast.expr) -> Iterator[str]:
    """The names in an assignment's target; attributes and items bind none."""
    waiting = [target]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, (ast.Tuple, ast.List)):
            waiting.extend(reversed(node.elts))
        elif isinstance(node, ast.Starred):
            waiting.append(node.value)


def _captured_names(statement: ast.Match) -> Iterator[str]:
    for case in statement.cases:
        for node in ast.walk(case.pattern):
            if isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
                yield node.name
            elif isinstance(node, ast.MatchMapping) and node.rest:
                yield node.rest
