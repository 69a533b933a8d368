"""Blocks that only import: ``try``/``except ImportError``, ``if TYPE_CHECKING``, versions.

They decide anew where they are run, and are taken as they stand.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

__all__ = ["is_import_block", "is_main_guard", "is_type_checking"]

_ABSENCE = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
_PLAIN_TEST = (
    *(ast.Name, ast.Attribute, ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Tuple),
    *(ast.Subscript, ast.Slice, ast.cmpop, ast.boolop, ast.unaryop, ast.expr_context),
)
_PLAIN_VALUE = (ast.Name, ast.Attribute, ast.Constant, ast.UnaryOp, ast.unaryop, ast.expr_context)


def is_import_block(node: ast.stmt) -> bool:
    """Whether a statement is an ``if`` or a ``try`` that does nothing but import."""
    if isinstance(node, ast.If):
        plain = is_type_checking(node.test) or _consists_of(node.test, _PLAIN_TEST)
        return plain and not _asks_for_main(node.test) and _only_imports([*node.body, *node.orelse])
    if isinstance(node, ast.Try):
        handled = [each for handler in node.handlers for each in handler.body]
        guards = all(_is_for_absence(handler) for handler in node.handlers)
        everything = [*node.body, *handled, *node.orelse, *node.finalbody]
        return guards and bool(node.handlers) and _only_imports(everything)
    return False


def is_type_checking(test: ast.expr) -> bool:
    """Whether a condition holds for type checkers only: ``TYPE_CHECKING``, by any spelling."""
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def is_main_guard(node: ast.stmt) -> bool:
    """Whether a statement is ``if __name__ == "__main__":``, with nothing for other names."""
    return isinstance(node, ast.If) and _asks_for_main(node.test) and not node.orelse


def _asks_for_main(test: ast.expr) -> bool:
    return any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(test))


def _is_for_absence(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(each, ast.Name) and each.id in _ABSENCE for each in types)


def _only_imports(body: list[ast.stmt]) -> bool:
    """Whether there are imports, and besides them only names for what is absent."""
    leaves = list(_leaves(body))
    imports = [leaf for leaf in leaves if isinstance(leaf, (ast.Import, ast.ImportFrom))]
    others = [leaf for leaf in leaves if not isinstance(leaf, (ast.Import, ast.ImportFrom))]
    return bool(imports) and all(_is_plain(leaf) for leaf in others)


def _leaves(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, (ast.If, ast.Try)) and is_import_block(node):
            handled = [each for handler in getattr(node, "handlers", []) for each in handler.body]
            yield from _leaves([*node.body, *handled, *node.orelse])
        else:
            yield node


def _is_plain(node: ast.stmt) -> bool:
    if isinstance(node, ast.Pass):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign):
        names = all(isinstance(target, ast.Name) for target in node.targets)
        return names and _consists_of(node.value, _PLAIN_VALUE)
    return False


def _consists_of(node: ast.expr, kinds: tuple[type[ast.AST], ...]) -> bool:
    return all(isinstance(part, kinds) for part in ast.walk(node))
