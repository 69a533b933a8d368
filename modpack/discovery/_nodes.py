"""Kinds of syntax nodes that several readers treat alike, and what is below a node."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

__all__ = ["COMPREHENSIONS", "FUNCTIONS", "TRIES", "child_nodes", "nodes_in"]

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

if sys.version_info >= (3, 11):
    TRIES = (ast.Try, ast.TryStar)
else:
    TRIES = (ast.Try,)

_LEAVES = frozenset({ast.Name, ast.Constant})
"""Half of all nodes."""
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {ast.Constant: ()}
"""For each kind of node that was met, the fields that may hold what :func:`child_nodes` tells."""
_OTHER_FIELDS = frozenset({"ctx", "op", "ops", "id", "attr", "arg", "type_comment"})


def child_nodes(node: ast.AST) -> list[ast.AST]:
    """What :func:`ast.iter_child_nodes` says, short of operators and contexts.

    In less than half of its time: it is asked for each node of a source that reads files.
    """
    kind = type(node)
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(name for name in kind._fields if name not in _OTHER_FIELDS)
    children: list[ast.AST] = []
    for name in _FIELDS[kind]:
        part = getattr(node, name, None)
        if isinstance(part, list):
            children += [each for each in part if isinstance(each, ast.AST)]
        elif isinstance(part, ast.AST):
            children.append(part)
    return children


def nodes_in(tree: ast.AST) -> Iterator[ast.AST]:
    """What :func:`ast.walk` says, in its order, short of operators and contexts."""
    level = [tree]
    while level:
        yield from level
        level = [
            below for node in level if type(node) not in _LEAVES for below in child_nodes(node)
        ]
