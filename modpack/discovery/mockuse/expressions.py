"""Reads expressions for the search for uses of mocks: their names, and what they are used for."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from modpack.core.usage import UseKind
from modpack.discovery._nodes import COMPREHENSIONS, child_nodes
from modpack.discovery.mockuse.chains import attribute_call, last_name, root_of_chain
from modpack.discovery.mockuse.places import Place, is_asked, outcome_of, quoted
from modpack.discovery.mockuse.table import (
    Assigned,
    ModuleTable,
    NameScope,
    Reference,
    ScopeKind,
)

__all__ = ["EXPRESSIONS", "ExpressionReader", "Handler"]

_SAFE_COMPARISONS = (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)
_KEEPS_ROLE = (ast.Tuple, ast.List, ast.Starred, ast.Subscript, ast.IfExp, ast.BoolOp, ast.BinOp)
_LONGEST_NAME = 300


class ExpressionReader:
    """Keeps what expressions mention, refer to, and bind.

    Args:
        module: the module's name.
        package: the package that it is in, or is.
    """

    def __init__(self, module: str, package: str) -> None:
        self._module = module
        self._package = package
        self._table = ModuleTable(NameScope(module), package)
        self._stack: list[tuple[ast.AST, Place]] = []

    def _push(self, nodes: Iterable[ast.AST | None], place: Place) -> None:
        found = [(node, place) for node in nodes if node is not None]
        self._stack.extend(reversed(found))

    def _others(self, node: ast.AST, place: Place) -> None:
        inside = place if isinstance(node, _KEEPS_ROLE) else place.inside
        self._push(child_nodes(node), inside)

    def _mention(self, place: Place, *words: str) -> None:
        for word in words:
            self._table.mentions[word].add(place.scope.unit)

    def _bind_opaque(self, target: ast.expr, place: Place) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                place.scope.bind(node.id)

    def _name(self, node: ast.Name, place: Place) -> None:
        if isinstance(node.ctx, ast.Load):
            self._refer(node, place)

    def _attribute(self, node: ast.Attribute, place: Place) -> None:
        if isinstance(node.ctx, ast.Load):
            self._refer(node, place)
        else:  # what it is set on is used
            self._push([node.value], place)

    def _refer(self, node: ast.expr, place: Place, is_called: bool = False) -> None:
        root = self._mention_chain(node, place)
        if isinstance(root, ast.Name):
            self._note(node, place, is_called)
            return
        if node is not root and isinstance(root, ast.Call):
            self._note(node, place, is_called)
        self._push([root], place.inside)

    def _mention_chain(self, node: ast.expr, place: Place) -> ast.expr:
        """Mention what stands in a chain of attributes; returns what it begins with."""
        while isinstance(node, ast.Attribute):
            self._mention(place, node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            self._mention(place, node.id)
        return node

    def _note(self, node: ast.expr, place: Place, is_called: bool = False) -> None:
        kind = place.role
        if kind is UseKind.VALUE and is_called:
            kind = UseKind.CALL
        if place.is_late and kind not in (UseKind.ANNOTATION, UseKind.CHECK):
            kind = UseKind.FUNCTION
        elif not place.is_late and kind is UseKind.CHECK:
            kind = UseKind.VALUE
        self._table.references.append(Reference(node, place.scope, kind, node.lineno, place.target))

    def _call(self, node: ast.Call, place: Place) -> None:
        self._arguments(node, place.inside)
        if isinstance(node.func, (ast.Name, ast.Attribute)):
            self._refer(node.func, place, is_called=True)
        else:
            self._push([node.func], place)

    def _arguments(self, node: ast.Call, place: Place) -> None:
        arguments = list(node.args)
        if attribute_call(node) is not None:
            self._note(node, place)
            if root_of_chain(arguments[0]) is not None:
                self._mention_chain(arguments.pop(0), place)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        asks = place.as_role(UseKind.CHECK) if place.role is UseKind.VALUE else place
        for number, argument in enumerate(arguments):
            only_asked = is_asked(name, number, len(arguments))
            self._push_consumed([argument], asks if only_asked else place)
        self._push((word.value for word in node.keywords), place)

    def _push_consumed(self, nodes: Iterable[ast.expr], place: Place) -> None:
        """Push what is read to its end at once, generator expressions included."""
        for node in nodes:
            if isinstance(node, ast.GeneratorExp):
                self._comprehension(node, place, is_consumed=True)
            else:
                self._push([node], place)

    def _compare(self, node: ast.Compare, place: Place) -> None:
        is_safe = all(isinstance(each, _SAFE_COMPARISONS) for each in node.ops)
        asks = is_safe and place.inside.role is UseKind.VALUE
        inside = place.inside.as_role(UseKind.CHECK) if asks else place.inside
        self._push([node.left, *node.comparators], inside)

    def _constant(self, node: ast.Constant, place: Place) -> None:
        if not isinstance(node.value, str):
            return
        if len(node.value) <= _LONGEST_NAME:
            self._mention(place, *node.value.replace(":", ".").split("."))
        if place.role is UseKind.ANNOTATION:
            self._push(quoted(node), place)

    def _subscript(self, node: ast.Subscript, place: Place) -> None:
        self._push([node.value], place)
        if place.role is not UseKind.ANNOTATION:
            self._push([node.slice], place.inside)
            return
        special = last_name(node.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        quotes = parts if special != "Annotated" else parts[:1]
        if special == "Literal":
            return
        self._push(quotes, place)
        self._push(parts[len(quotes) :], place.plain)

    def _comprehension(self, node: Any, place: Place, is_consumed: bool = False) -> None:
        scope = place.scope
        inner = NameScope(self._module, ScopeKind.FUNCTION, scope, scope.label, scope.unit)
        inner.is_comprehension = True
        # What a generator expression does, it does when somebody asks for it.
        waits = isinstance(node, ast.GeneratorExp) and not is_consumed
        inner.is_late = place.is_late or waits
        inside = Place(inner, inner.is_late)
        for number, each in enumerate(node.generators):
            self._bind_opaque(each.target, inside)
            self._push([each.iter], place.plain if number == 0 else inside)
            self._push([each.target, *each.ifs], inside)
        self._push((getattr(node, name, None) for name in ("elt", "key", "value")), inside)

    def _if_expression(self, node: ast.IfExp, place: Place) -> None:
        holds = outcome_of(node.test)
        self._push([node.test], place.inside)
        self._push([node.body] if holds is not False else (), place)
        self._push([node.orelse] if holds is not True else (), place)

    def _walrus(self, node: ast.NamedExpr, place: Place) -> None:
        scope = place.scope
        while scope.is_comprehension and scope.parent is not None:
            scope = scope.parent
        scope.bind(node.target.id, Assigned(node.value, place.scope))
        self._push([node.value], place.inside)


Handler: TypeAlias = Callable[[Any, Any, Place], None]

EXPRESSIONS: dict[str, Handler] = {
    "IfExp": ExpressionReader._if_expression,
    "NamedExpr": ExpressionReader._walrus,
    "Name": ExpressionReader._name,
    "Attribute": ExpressionReader._attribute,
    "Call": ExpressionReader._call,
    "Compare": ExpressionReader._compare,
    "Constant": ExpressionReader._constant,
    "Subscript": ExpressionReader._subscript,
    **{kind.__name__: ExpressionReader._comprehension for kind in COMPREHENSIONS},
}
"""What deals with which kind of node; the parts of others are looked at one by one."""
