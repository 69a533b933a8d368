"""Expressions that stand for a name: chains of attributes, ``getattr``, imports by call."""

from __future__ import annotations

import ast

__all__ = ["attribute_call", "import_call", "last_name", "root_of_chain", "text_of"]


def root_of_chain(node: ast.expr) -> ast.Name | None:
    """The name that ``a.b.c`` begins with; None for anything else."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def last_name(node: ast.AST | None) -> str:
    """The last component of a dotted name; of what is called, for a call; otherwise nothing.

    >>> last_name(ast.parse("typing.Literal", mode="eval").body)
    'Literal'
    """
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def attribute_call(node: ast.AST) -> tuple[ast.expr, str] | None:
    """Of ``getattr(value, "name")``, the value and the name; None for anything else."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return None
    if node.func.id != "getattr" or len(node.args) < 2:
        return None
    name = text_of(node.args[1])
    return None if name is None else (node.args[0], name)


def text_of(node: ast.expr) -> str | None:
    """The text that an expression is, if it is a literal one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def import_call(node: ast.AST) -> str | None:
    """The function by which a call imports, ``import_module`` or ``__import__``; None if none."""
    if not isinstance(node, ast.Call) or not (node.args or node.keywords):
        return None
    name = last_name(node.func)
    return name if name in ("import_module", "__import__") else None
