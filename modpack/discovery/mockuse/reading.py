"""Reads a module for the search for uses of mocks: its statements and definitions."""

from __future__ import annotations

import ast
from typing import Any

from modpack.core.usage import UseKind
from modpack.discovery._blocks import resolve_relative
from modpack.discovery._exports import literal_exports, mentions_exports
from modpack.discovery._parse import ParsedSource, parse_source
from modpack.discovery.mockuse.chains import last_name
from modpack.discovery.mockuse.expressions import EXPRESSIONS, ExpressionReader, Handler
from modpack.discovery.mockuse.places import Place, is_harmless, is_static, outcome_of, qualified
from modpack.discovery.mockuse.table import (
    Assigned,
    Binding,
    Decorated,
    Defined,
    Imported,
    Instance,
    ModuleTable,
    NameScope,
    ScopeKind,
    Unit,
)

__all__ = ["read_table"]

_EXCEPTIONS = ("Error", "Exception", "Warning")


def read_table(source: bytes, module: str, is_package: bool) -> ModuleTable | None:
    """What a module's source binds and mentions; None if Python cannot parse it.

    Args:
        source: its source.
        module: its absolute name.
        is_package: whether it is a package's ``__init__``.
    """
    parsed = parse_source(source)
    if not isinstance(parsed, ParsedSource):
        return None
    package = module if is_package else module.rpartition(".")[0]
    return _Reader(module, package).table(parsed.tree)


class _Reader(ExpressionReader):
    """One pass over a module, with a stack instead of recursion."""

    def table(self, tree: ast.Module) -> ModuleTable:
        self._push(tree.body, Place(self._table.scope))
        while self._stack:
            node, place = self._stack.pop()
            handler = _HANDLERS.get(type(node).__name__)
            if handler is not None:
                handler(self, node, place)
            else:
                self._others(node, place)
        exports = [(each, True) for each in tree.body if mentions_exports(each)]
        exported = literal_exports(exports)
        self._table.exported = frozenset(exported) if exported is not None else None
        return self._table

    # -- statements --------------------------------------------------------------------------

    def _if(self, node: ast.If | ast.While, place: Place) -> None:
        holds = outcome_of(node.test)
        self._push([node.test], place)
        self._push(node.body if holds is not False else (), place)
        self._push(node.orelse if holds is not True else (), place)

    def _expression(self, node: ast.Expr, place: Place) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self._push([node.value], place)

    def _import(self, node: ast.Import, place: Place) -> None:
        for alias in node.names:
            root = alias.name.partition(".")[0]
            self._mention(place, *alias.name.split("."))
            if alias.asname is None:
                place.scope.bind(root, Imported(root))
            else:
                place.scope.bind(alias.asname, Imported(alias.name))

    def _import_from(self, node: ast.ImportFrom, place: Place) -> None:
        source = resolve_relative(self._package, node.level, node.module or "")
        if source is None:
            return
        for alias in node.names:
            if alias.name == "*":
                place.scope.stars.append(source)
            else:
                self._mention(place, alias.name)
                place.scope.bind(alias.asname or alias.name, Imported(source, alias.name))

    def _assign(self, node: ast.Assign, place: Place) -> None:
        for target in node.targets:
            self._bind_target(target, node.value, place)
        self._push([node.value, *node.targets], place)

    def _annotated(self, node: ast.AnnAssign, place: Place) -> None:
        if node.value is not None:
            self._bind_target(node.target, node.value, place)
        self._push([node.value, node.target], place)
        self._push([node.annotation], place.as_role(UseKind.ANNOTATION))

    def _loop(self, node: ast.For | ast.AsyncFor, place: Place) -> None:
        self._bind_opaque(node.target, place)
        self._push_consumed([node.iter], place)
        self._push([node.target, *node.body, *node.orelse], place)

    def _with(self, node: ast.With | ast.AsyncWith, place: Place) -> None:
        for item in node.items:
            if item.optional_vars is not None:
                self._bind_target(item.optional_vars, item.context_expr, place)
            self._push([item.context_expr, item.optional_vars], place)
        self._push(node.body, place)

    def _handler(self, node: ast.ExceptHandler, place: Place) -> None:
        if node.name is not None:
            place.scope.bind(node.name)
        self._push(node.body, place)
        types = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        for each in types:
            # Stand-ins of exceptions are classes, which "except" needs; others are not.
            asks = last_name(each).endswith(_EXCEPTIONS)
            self._push([each], place.as_role(UseKind.CHECK) if asks else place)

    def _global(self, node: ast.Global, place: Place) -> None:
        place.scope.elsewhere.update(dict.fromkeys(node.names, place.scope.top))

    def _nonlocal(self, node: ast.Nonlocal, place: Place) -> None:
        for name in node.names:
            around = place.scope.parent
            if around is not None:  # what binds it may follow below
                place.scope.elsewhere[name] = around.binder(name) or around

    def _capture(self, node: Any, place: Place) -> None:
        """A pattern that binds a name."""
        name = getattr(node, "name", None) or getattr(node, "rest", None)
        if name is not None:
            place.scope.bind(name)
        self._push(ast.iter_child_nodes(node), place)

    def _class_pattern(self, node: ast.MatchClass, place: Place) -> None:
        self._mention(place, *node.kwd_attrs)
        self._push([node.cls], place.as_role(UseKind.CHECK))
        self._push([*node.patterns, *node.kwd_patterns], place)

    def _value_pattern(self, node: ast.MatchValue, place: Place) -> None:
        self._push([node.value], place.as_role(UseKind.CHECK))

    # -- definitions -------------------------------------------------------------------------

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, place: Place) -> None:
        around = place.scope
        label = qualified(around, node.name)
        harmful = [each for each in node.decorator_list if not is_harmless(each)]
        if not around.unit:
            body = around if around.kind is ScopeKind.CLASS else None
            self._table.units[label] = Unit(node.name, body, bool(harmful))
        decorators = tuple(harmful)
        around.bind(node.name, *([Decorated(label, decorators, around)] if decorators else []))
        self._push(node.decorator_list, place.making(label, UseKind.DECORATOR))
        self._annotations(node, place)
        inside = self._function_scope(node, place, label)
        self._push(node.body, Place(inside, is_late=True))

    def _lambda(self, node: ast.Lambda, place: Place) -> None:
        self._push([*node.args.defaults, *node.args.kw_defaults], place.inside)
        inside = self._function_scope(node, place, qualified(place.scope, "<lambda>"))
        self._push([node.body], Place(inside, is_late=True))

    def _function_scope(self, node: Any, place: Place, label: str) -> NameScope:
        around = place.scope
        is_function = not isinstance(node, ast.Lambda)
        unit = around.unit or (label if is_function else "")
        scope = NameScope(self._module, ScopeKind.FUNCTION, around, label, unit)
        scope.is_late = True
        arguments = node.args
        named = [*arguments.posonlyargs, *arguments.args]
        rest = [*arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        for argument in filter(None, [*named, *rest]):
            scope.bind(argument.arg)
        if named and around.kind is ScopeKind.CLASS and is_function and not is_static(node):
            scope.bind(named[0].arg, Instance(around))
        return scope

    def _annotations(self, node: ast.FunctionDef | ast.AsyncFunctionDef, place: Place) -> None:
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += filter(None, [arguments.vararg, arguments.kwarg])
        self._push([*arguments.defaults, *arguments.kw_defaults], place.plain)
        notes = [each.annotation for each in every]
        parameters = getattr(node, "type_params", [])
        self._push([*notes, node.returns, *parameters], place.as_role(UseKind.ANNOTATION))

    def _class(self, node: ast.ClassDef, place: Place) -> None:
        around = place.scope
        label = qualified(around, node.name)
        body = NameScope(self._module, ScopeKind.CLASS, around, label, around.unit)
        body.definition = node
        body.is_late = place.is_late
        meanings: list[Binding] = [Defined(node, around, body)]
        if node.decorator_list:
            meanings.append(Decorated(label, tuple(node.decorator_list), around))
        around.bind(node.name, *meanings)
        if not around.unit:
            self._table.classes[label] = body
        self._push(node.decorator_list, place.making(label, UseKind.DECORATOR))
        bases = [*node.bases, *(word.value for word in node.keywords)]
        self._push(bases, place.making(label, UseKind.BASE_CLASS))
        self._push(getattr(node, "type_params", []), place.as_role(UseKind.ANNOTATION))
        self._push(node.body, Place(body, place.is_late))

    def _type_alias(self, node: Any, place: Place) -> None:
        place.scope.bind(node.name.id)
        self._push([*node.type_params, node.value], place.as_role(UseKind.ANNOTATION))

    # -- targets -----------------------------------------------------------------------------

    def _bind_target(self, target: ast.expr, value: ast.expr, place: Place) -> None:
        if isinstance(target, ast.Name):
            place.scope.bind(target.id, Assigned(value, place.scope))
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            self._bind_attribute(target.value.id, target.attr, value, place)
        elif isinstance(target, (ast.Tuple, ast.List)):
            values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            if len(values) == len(target.elts) and not any(
                isinstance(each, ast.Starred) for each in target.elts
            ):
                for each, its_value in zip(target.elts, values, strict=True):
                    self._bind_target(each, its_value, place)
            else:
                self._bind_opaque(target, place)

    def _bind_attribute(self, name: str, attribute: str, value: ast.expr, place: Place) -> None:
        """What a method keeps in its instance can be taken from it by any method."""
        binder = place.scope.binder(name)
        for meaning in binder.bindings[name] if binder is not None else ():
            if isinstance(meaning, Instance):
                meaning.body.bind(attribute, Assigned(value, place.scope))


_STATEMENTS: dict[str, Handler] = {
    "If": _Reader._if,
    "While": _Reader._if,
    "Expr": _Reader._expression,
    "Import": _Reader._import,
    "ImportFrom": _Reader._import_from,
    "Assign": _Reader._assign,
    "AnnAssign": _Reader._annotated,
    "For": _Reader._loop,
    "AsyncFor": _Reader._loop,
    "With": _Reader._with,
    "AsyncWith": _Reader._with,
    "ExceptHandler": _Reader._handler,
    "Global": _Reader._global,
    "Nonlocal": _Reader._nonlocal,
    "MatchAs": _Reader._capture,
    "MatchStar": _Reader._capture,
    "MatchMapping": _Reader._capture,
    "MatchClass": _Reader._class_pattern,
    "MatchValue": _Reader._value_pattern,
    "FunctionDef": _Reader._function,
    "AsyncFunctionDef": _Reader._function,
    "Lambda": _Reader._lambda,
    "ClassDef": _Reader._class,
    "TypeAlias": _Reader._type_alias,
}
_HANDLERS = {**EXPRESSIONS, **_STATEMENTS}
