"""Values of a script's names: which can be written down, and which text makes them again."""

from __future__ import annotations

import ast
import builtins
import collections
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

from modpack.packing.scriptproof import resolved
from modpack.resolution.live import is_a

__all__ = ["gives", "is_container", "is_literal", "is_named_by_itself", "is_type", "literal_of"]

_LONGEST = 500
_ATOMS = (int, float, str, bytes, bool, type(None), type(...))
_CONTAINERS = (
    *(dict, list, set),
    *(collections.OrderedDict, collections.defaultdict, collections.deque, collections.Counter),
)
_TYPE_EXPRESSION = (
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple, ast.List),
    *(ast.BinOp, ast.BitOr, ast.expr_context),
)


def literal_of(value: Any) -> str | None:
    """A literal for a value that never changes: a number, a text, a tuple of such; else None.

    >>> literal_of((1, "a")), literal_of([1]), literal_of(float("nan"))
    ("(1, 'a')", None, None)
    """
    text = repr(value) if _is_plain(value) else None
    return text if text is not None and len(text) <= _LONGEST else None


def is_literal(expression: ast.expr | None, value: Any) -> bool:
    """Whether an expression is a literal of this very value: ``1`` is not ``True``."""
    try:
        told = ast.literal_eval(expression) if expression is not None else _ABSENT
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return type(told) is type(value) and repr(told) == repr(value)


def is_container(expression: ast.expr | None, namespace: Mapping[str, Any]) -> bool:
    """Whether an expression makes a new container of literals, and does nothing else."""
    if isinstance(expression, ast.Call):
        made = resolved(expression.func, {**vars(builtins), **namespace})
        arguments = [*expression.args, *(keyword.value for keyword in expression.keywords)]
        return made in _CONTAINERS and all(_is_argument(each) for each in arguments)
    if isinstance(expression, (ast.List, ast.Dict, ast.Set)):
        return _is_argument(expression)
    return False


def gives(expression: ast.expr | None, value: Any, namespace: Mapping[str, Any]) -> bool:
    """Whether an expression is the name of an object that is made by definitions or imports."""
    is_code = is_a(value, (type, types.ModuleType, types.FunctionType))
    is_code = is_code or is_a(value, types.BuiltinFunctionType)
    return is_code and expression is not None and resolved(expression, namespace) is value


def is_type(expression: ast.expr | None, value: Any) -> bool:
    """Whether an expression spells a type, such as ``dict[str, Tensor]``, for annotations."""
    is_alias = is_a(value, (types.GenericAlias, types.UnionType, *_ALIASES))
    parts = ast.walk(expression) if expression is not None else ()
    return (
        is_alias
        and expression is not None
        and all(isinstance(part, _TYPE_EXPRESSION) for part in parts)
    )


def is_named_by_itself(name: str, value: Any) -> bool:
    """Whether pickle refers to an object by a name of its module: a type variable, for one."""
    return is_a(value, _NAMED) and getattr(value, "__name__", None) == name


_ABSENT = object()
_ALIASES = (type(typing.List[int]), type(typing.Union[int, str]))  # noqa: UP006, UP007
_NAMED = tuple(
    kind
    for kind in (
        getattr(typing, name, None)
        for name in ("TypeVar", "ParamSpec", "TypeVarTuple", "NewType", "TypeAliasType")
    )
    if isinstance(kind, type)
)


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(_is_plain(each) for each in value)
    if type(value) is float:
        return math.isfinite(value)
    return type(value) in _ATOMS


def _is_argument(expression: ast.expr) -> bool:
    if isinstance(expression, ast.Name):
        return expression.id in ("list", "dict", "set", "int", "float", "str", "tuple", "bool")
    try:
        ast.literal_eval(expression)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True
