"""Values that a source spells out: literals, and arithmetic of them."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Final

from modpack.core.defined import Literal

__all__ = ["UNKNOWN", "dotted_name", "literal_of", "mangled"]

UNKNOWN: Final[list[str]] = []
_LONGEST = 500
_LARGEST = 1 << 64
_Number = int | float
_OPERATORS: Mapping[type[ast.operator], Callable[[_Number, _Number], _Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def literal_of(node: ast.expr | None) -> Literal:
    """The value of an expression as rows have it; unknown if it is no literal.

    >>> [
    ...     literal_of(ast.parse(text, mode="eval").body)
    ...     for text in ("-3", "2 * 4", "(1, 'a')", "f()")
    ... ]
    [-3, 8, ["(1, 'a')"], []]
    """
    if node is None:
        return UNKNOWN
    if isinstance(node, ast.Constant):
        return _constant(node.value)
    if isinstance(node, (ast.UnaryOp, ast.BinOp)):
        return _folded(node)
    if isinstance(node, (ast.Tuple, ast.List, ast.Dict, ast.Set)):
        try:
            text = repr(ast.literal_eval(node))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return UNKNOWN
        return [text] if len(text) <= _LONGEST else UNKNOWN
    return UNKNOWN


def dotted_name(node: ast.expr) -> str:
    """``a.b.c`` for a chain of names; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def mangled(name: str, kind: str) -> str:
    """The name under which a class keeps what its body calls ``__name``; no class, the name.

    >>> mangled("__x", "_Net"), mangled("__init__", "Net"), mangled("__x", "")
    ('_Net__x', '__init__', '__x')
    """
    if not kind.strip("_") or not name.startswith("__") or name.endswith("__"):
        return name
    return f"_{kind.lstrip('_')}{name}"


def _constant(value: object) -> Literal:
    if isinstance(value, int):
        return value if abs(value) <= _LARGEST else UNKNOWN
    if isinstance(value, float):
        return value if math.isfinite(value) else UNKNOWN
    if value is None:
        return None
    if isinstance(value, str):
        fits = len(value) <= _LONGEST and not any("\ud800" <= each <= "\udfff" for each in value)
        return value if fits else UNKNOWN
    text = repr(value)
    return [text] if len(text) <= _LONGEST else UNKNOWN


def _folded(node: ast.expr) -> Literal:
    """What Python makes of arithmetic with numbers, as long as they stay small."""
    try:
        number = _number(node)
    except RecursionError:
        return UNKNOWN
    return UNKNOWN if number is None else number


def _number(node: ast.expr) -> _Number | None:
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return value
    if isinstance(node, ast.UnaryOp):
        operand = _number(node.operand)
        if operand is None or not isinstance(node.op, (ast.USub, ast.UAdd)):
            return None
        return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.BinOp):
        left, right = _number(node.left), _number(node.right)
        return None if left is None or right is None else _calculated(node.op, left, right)
    return None


def _calculated(how: ast.operator, left: _Number, right: _Number) -> _Number | None:
    if isinstance(how, ast.LShift) and isinstance(left, int) and isinstance(right, int):
        how, right = ast.Mult(), 2**right if 0 <= right <= 64 else math.inf
    if type(how) not in _OPERATORS or (isinstance(how, ast.Pow) and not 0 <= right <= 64):
        return None
    try:
        made = _OPERATORS[type(how)](left, right)
    except (ArithmeticError, ValueError):
        return None
    return made if abs(made) <= _LARGEST else None
