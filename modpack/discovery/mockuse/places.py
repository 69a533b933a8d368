"""Where nodes of a syntax tree stand, and what that says about the names in them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from modpack.core.usage import UseKind
from modpack.discovery._importblocks import is_type_checking
from modpack.discovery._parse import ParsedSource, parse_source
from modpack.discovery.mockuse.chains import last_name
from modpack.discovery.mockuse.table import NameScope, ScopeKind

__all__ = ["Place", "is_asked", "is_harmless", "is_static", "outcome_of", "qualified", "quoted"]

_HARMLESS_DECORATORS = frozenset(
    {"staticmethod", "classmethod", "property", "abstractmethod", "setter", "getter", "deleter"}
    | {"override", "final", "wraps", "cached_property", "lru_cache", "cache", "contextmanager"}
    | {"no_grad", "enable_grad", "inference_mode"}
)
_ASKS = frozenset({"hasattr", "callable", "id", "type", "repr", "str"})


class Place(NamedTuple):
    """Where a node stands.

    Attributes:
        scope: in which scope.
        is_late: whether it runs when a function is called.
        role: what its names are used for there, if it runs at import time.
        target: what it decorates, or is a base of.
    """

    scope: NameScope
    is_late: bool = False
    role: UseKind = UseKind.VALUE
    target: str = ""

    def as_role(self, role: UseKind) -> Place:
        """The same, where names are used for something else."""
        return self if role is self.role else Place(self.scope, self.is_late, role)

    def making(self, target: str, role: UseKind) -> Place:
        """For the decorators and bases of something."""
        return Place(self.scope, self.is_late, role, target)

    @property
    def plain(self) -> Place:
        """The same, where names are used in no special way."""
        return self.as_role(UseKind.VALUE)

    @property
    def inside(self) -> Place:
        """For the parts of an expression that is no name: an annotation has only annotations."""
        return self if self.role is UseKind.ANNOTATION else self.plain


def qualified(scope: NameScope, name: str) -> str:
    """The qualified name of what is defined in a scope."""
    if scope.kind is ScopeKind.FUNCTION and not scope.label.endswith("<lambda>"):
        return f"{scope.label}.<locals>.{name}" if scope.label else name
    return f"{scope.label}.{name}" if scope.label else name


def outcome_of(test: ast.expr) -> bool | None:
    """What a condition is known to be in a package; None if it may be either."""
    is_negated = False
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, is_negated = test.operand, not is_negated
    outcome = _plain_outcome(test)
    return outcome if outcome is None else outcome is not is_negated


def _plain_outcome(test: ast.expr) -> bool | None:
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if is_type_checking(test):
        return False
    if isinstance(test, ast.BoolOp):
        outcomes = {outcome_of(each) for each in test.values}
        decisive = isinstance(test.op, ast.Or)
        if decisive in outcomes:
            return decisive
        return None if None in outcomes else not decisive
    return _is_script(test)


def _is_script(test: ast.expr) -> bool | None:
    """What ``__name__ == "__main__"`` is; None for other conditions."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    sides = (test.left, test.comparators[0])
    is_name = any(isinstance(each, ast.Name) and each.id == "__name__" for each in sides)
    is_main = any(isinstance(each, ast.Constant) and each.value == "__main__" for each in sides)
    if not (is_name and is_main):
        return None
    known = {ast.Eq: False, ast.NotEq: True}
    return known.get(type(test.ops[0]))


def is_asked(function: str, number: int, count: int) -> bool:
    """Whether a builtin only asks what an argument is."""
    if function == "isinstance":
        return number == 1
    return function == "issubclass" or (function in _ASKS and number == 0 and count <= 2)


def is_harmless(decorator: ast.expr) -> bool:
    """Whether a decorator hands what it decorates to nobody."""
    return last_name(decorator) in _HARMLESS_DECORATORS


def is_static(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a method gets neither an instance nor its class."""
    return any(last_name(each) == "staticmethod" for each in node.decorator_list)


def quoted(node: ast.Constant) -> Iterator[ast.expr]:
    """The expression in a quoted annotation, on the line of the quote."""
    parsed = parse_source(str(node.value).strip())
    statements = parsed.tree.body if isinstance(parsed, ParsedSource) else []
    for statement in statements[:1]:
        if isinstance(statement, ast.Expr):
            for part in ast.walk(statement.value):
                if hasattr(part, "lineno"):
                    part.lineno = node.lineno
            yield statement.value
