"""What the names in a source stand for, as far as paths are concerned."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from modpack.discovery._blocks import resolve_relative
from modpack.discovery._nodes import nodes_in

__all__ = ["PlaceNames"]

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class PlaceNames:
    """The names of a source, wherever in it they are bound.

    Args:
        tree: the source.
        package: the package that it is in, or is.

    Attributes:
        aliases: what imports bind, and the dotted names that it stands for.
        values: name -> every expression that it is bound to, None for what is no expression.
        functions: name -> every function that has it.
        used: the names that are read anywhere.
        docstrings: the expressions (by id) that are statements of their own.
    """

    def __init__(self, tree: ast.Module, package: str) -> None:
        self.aliases: dict[str, str] = {}
        self.values: dict[str, list[ast.expr | None]] = {}
        self.functions: dict[str, list[_Function]] = {}
        self.used: set[str] = set()
        self.docstrings: set[int] = set()
        self._package = package
        learners = self._learners()
        for node in nodes_in(tree):
            learn = learners.get(type(node))
            if learn is not None:
                learn(node)

    def _learners(self) -> Mapping[type[ast.AST], Callable[[Any], None]]:
        return {
            ast.Import: self._learn_import,
            ast.ImportFrom: self._learn_import_from,
            ast.Assign: self._learn_assigned,
            ast.AnnAssign: self._learn_annotated,
            ast.For: self._learn_target,
            ast.comprehension: self._learn_target,
            ast.AugAssign: self._learn_target,
            ast.withitem: self._learn_context,
            ast.FunctionDef: self._learn_function,
            ast.AsyncFunctionDef: self._learn_function,
            ast.arg: self._learn_parameter,
            ast.Name: self._learn_use,
            ast.Expr: self._learn_docstring,
        }

    def _learn_import(self, node: ast.Import) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            self.aliases[name] = alias.name if alias.asname else name

    def _learn_import_from(self, node: ast.ImportFrom) -> None:
        source = resolve_relative(self._package, node.level, node.module or "")
        for alias in node.names:
            self.aliases[alias.asname or alias.name] = f"{source or ''}.{alias.name}"

    def _learn_assigned(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._learn_value(target, node.value)

    def _learn_annotated(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._learn_value(node.target, node.value)

    def _learn_target(self, node: ast.For | ast.comprehension | ast.AugAssign) -> None:
        self._learn_value(node.target, None)

    def _learn_context(self, node: ast.withitem) -> None:
        if node.optional_vars is not None:
            self._learn_value(node.optional_vars, node.context_expr)

    def _learn_value(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            self.values.setdefault(target.id, []).append(value)

    def _learn_function(self, node: _Function) -> None:
        self.functions.setdefault(node.name, []).append(node)

    def _learn_parameter(self, node: ast.arg) -> None:
        self.values.setdefault(node.arg, []).append(None)

    def _learn_use(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.used.add(node.id)

    def _learn_docstring(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            self.docstrings.add(id(node.value))
