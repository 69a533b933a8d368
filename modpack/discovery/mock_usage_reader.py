"""A one-pass reader for a module's scopes and name uses, for the search for uses of mocks."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from modpack.core.plan import UseKind
from modpack.discovery.conditions import known_truth
from modpack.discovery.import_scanner import literal_exports, mentions_exports
from modpack.discovery.syntax import (
    Function,
    ParsedSource,
    assigned_names,
    dotted_name,
    is_type_checking,
    last_name,
    literal_string,
    parameters_of,
    parse_source,
    resolve_relative,
)

_SAFE_COMPARISONS = (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)
_KEEPS_ROLE = (ast.Tuple, ast.List, ast.Starred, ast.Subscript, ast.IfExp, ast.BoolOp, ast.BinOp)
_MAX_NAME = 300
_EXCEPTIONS = ("Error", "Exception", "Warning")
_HARMLESS_DECORATORS = frozenset(
    {"staticmethod", "classmethod", "property", "abstractmethod", "setter", "getter", "deleter"}
    | {"override", "final", "wraps", "cached_property", "lru_cache", "cache", "contextmanager"}
    | {"no_grad", "enable_grad", "inference_mode"}
)
"""Decorators that do not pass the decorated function to other code."""
_TYPE_CHECKS = frozenset({"hasattr", "callable", "id", "type", "repr", "str"})


@dataclass(eq=False)
class NameScope:
    """The names that a module, class, function, lambda, or comprehension binds.

    Attributes:
        module: Module that contains the scope.
        parent: Enclosing scope; None for a module.
        label: Qualified name of the function or class; empty for a module.
        unit: Qualified name of the outermost enclosing function; empty if there is none.
        is_late: Whether the code in the scope runs only when a function is called.
        definition: Class statement; None for other scopes.
        is_comprehension: Whether the scope belongs to a comprehension.
        bindings: Bindings by name, in source order. An empty list means an irrelevant value.
        redirected: Scopes of the names in ``global`` and ``nonlocal`` statements.
        stars: Modules of star imports.
    """

    module: str
    parent: NameScope | None = None
    label: str = ""
    unit: str = ""
    is_late: bool = False
    definition: ast.ClassDef | None = None
    is_comprehension: bool = False
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    redirected: dict[str, NameScope] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)

    @property
    def top(self) -> NameScope:
        """Scope of the module."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def qualified(self, name: str) -> str:
        """Return the qualified name of a definition in this scope."""
        is_function = self.parent is not None and self.definition is None
        is_named = is_function and not self.label.endswith("<lambda>")
        return f"{self.label}{'.<locals>.' if is_named else '.'}{name}" if self.label else name

    def bind(self, name: str, *meanings: Binding) -> None:
        """Bind a name here, or in the scope that ``global`` or ``nonlocal`` selects."""
        scope = self.redirected.get(name, self)
        scope.bindings.setdefault(name, []).extend(meanings)

    def bind_opaque(self, target: ast.expr) -> None:
        """Bind the names in an assignment's target to an irrelevant value."""
        for name in assigned_names(target):
            self.bind(name)

    def binder(self, name: str) -> NameScope | None:
        """Return the scope whose binding of a name is visible here; None if there is none."""
        scope: NameScope | None = self.redirected.get(name, self)
        while scope is not None:
            # Methods do not see the names of their class.
            if scope is self or scope.definition is None:
                if name in scope.redirected:
                    return scope.redirected[name]
                if name in scope.bindings:
                    return scope
            scope = scope.parent
        return None


@dataclass(frozen=True)
class Imported:
    """An import of a module, or of a name in it."""

    module: str
    name: str | None = None


@dataclass(frozen=True)
class Assigned:
    """An assigned expression and the scope in which it is evaluated."""

    value: ast.expr
    scope: NameScope


@dataclass(frozen=True)
class DefinedClass:
    """A class, as the scope of its body."""

    body: NameScope


@dataclass(frozen=True)
class Decorated:
    """A decorated function or class."""

    name: str
    decorators: tuple[ast.expr, ...]
    scope: NameScope


@dataclass(frozen=True)
class Instance:
    """The first parameter of a method: an instance of the class, or the class itself."""

    body: NameScope


Binding: TypeAlias = Imported | Assigned | DefinedClass | Decorated | Instance


class NameReference(NamedTuple):
    """A use of a name with all its attributes.

    Attributes:
        node: Expression (``tools.log``).
        scope: Scope of the expression.
        kind: Kind of use.
        target: Qualified name of the function or class that the name decorates or is a base of;
            empty for other uses.
    """

    node: ast.expr
    scope: NameScope
    kind: UseKind
    target: str = ""


class FunctionUnit(NamedTuple):
    """A function that is not nested in another function.

    Attributes:
        name: Function name.
        body: Scope of the class, for a method.
        is_decorated: Whether a decorator may pass the function to other code.
    """

    name: str
    body: NameScope | None
    is_decorated: bool


@dataclass
class ModuleTable:
    """The bindings and mentions of a module.

    Attributes:
        scope: Scope of the module.
        package: Python package that contains the module, or that it is.
        references: Uses of names in code that can run.
        mentions: Units that contain an identifier, an attribute, or a string, by that name. The
            empty unit is code that runs when the module is imported.
        units: Functions by qualified name.
        classes: Scopes of classes outside of functions, by qualified name.
        exported: Names in ``__all__``, if it is a plain list.
    """

    scope: NameScope
    package: str
    references: list[NameReference] = field(default_factory=list)
    mentions: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    units: dict[str, FunctionUnit] = field(default_factory=dict)
    classes: dict[str, NameScope] = field(default_factory=dict)
    exported: frozenset[str] | None = None


def attribute_call(node: ast.AST) -> tuple[ast.expr, str] | None:
    """Return the value and the name of ``getattr(value, "name")``; None for anything else."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return None
    if node.func.id != "getattr" or len(node.args) < 2:
        return None
    name = literal_string(node.args[1])
    return None if name is None else (node.args[0], name)


def read_table(source: bytes, module: str, is_package: bool) -> ModuleTable | None:
    """Read the bindings and mentions of a module; None if its source cannot be parsed.

    Args:
        source: Source bytes.
        module: Absolute name of the module.
        is_package: Whether the source is a Python package's ``__init__``.
    """
    parsed = parse_source(source)
    if not isinstance(parsed, ParsedSource):
        return None
    table = ModuleTable(NameScope(module), module if is_package else module.rpartition(".")[0])
    _ModuleReader(table).read(parsed.tree)
    exported = literal_exports((each, True) for each in parsed.tree.body if mentions_exports(each))
    table.exported = frozenset(exported) if exported is not None else None
    return table


class _Context(NamedTuple):
    """The context of a node.

    Attributes:
        scope: Scope of the node.
        is_late: Whether the node runs only when a function is called.
        role: Kind of use of the node's names at import time.
        target: Function or class that the node decorates or is a base of.
    """

    scope: NameScope
    is_late: bool = False
    role: UseKind = UseKind.MODULE_LEVEL
    target: str = ""

    def using(self, role: UseKind, target: str = "") -> _Context:
        """Return this context with another role."""
        return self if role is self.role else _Context(self.scope, self.is_late, role, target)

    @property
    def inside(self) -> _Context:
        """Context for the parts of a compound expression. Annotations contain only annotations."""
        return self if self.role is UseKind.ANNOTATION else self.using(UseKind.MODULE_LEVEL)


class _ModuleReader:
    """A visitor for one pass over a module, with a stack instead of recursion.

    Methods are named like those of :class:`ast.NodeVisitor`.
    """

    def __init__(self, table: ModuleTable) -> None:
        self._table = table
        self._stack: list[tuple[ast.AST, _Context]] = []

    def read(self, tree: ast.Module) -> None:
        self._push(tree.body, _Context(self._table.scope))
        while self._stack:
            node, context = self._stack.pop()
            getattr(self, f"visit_{type(node).__name__}", self._visit_parts)(node, context)

    def _push(self, nodes: Iterable[ast.AST | None], context: _Context) -> None:
        found = [(node, context) for node in nodes if node is not None]
        self._stack.extend(reversed(found))

    def _visit_parts(self, node: ast.AST, context: _Context) -> None:
        self._push(
            ast.iter_child_nodes(node), context if isinstance(node, _KEEPS_ROLE) else context.inside
        )

    def _mention(self, context: _Context, *words: str) -> None:
        for word in words:
            self._table.mentions[word].add(context.scope.unit)

    def _mention_chain(self, node: ast.expr, context: _Context) -> ast.expr:
        """Mention the names in a chain of attributes; return its first expression."""
        while isinstance(node, ast.Attribute):
            self._mention(context, node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            self._mention(context, node.id)
        return node

    def _visit_reference(self, node: ast.expr, context: _Context, is_called: bool = False) -> None:
        root = self._mention_chain(node, context)
        if isinstance(root, (ast.Name, ast.Call)):
            self._add_reference(node, context, is_called)
        if not isinstance(root, ast.Name):
            self._push([root], context.inside)

    def _add_reference(self, node: ast.expr, context: _Context, is_called: bool = False) -> None:
        kind = context.role
        if kind is UseKind.MODULE_LEVEL and is_called:
            kind = UseKind.CALL
        if context.is_late and kind not in (UseKind.ANNOTATION, UseKind.TYPE_CHECK):
            kind = UseKind.FUNCTION_BODY
        elif not context.is_late and kind is UseKind.TYPE_CHECK:
            kind = UseKind.MODULE_LEVEL
        self._table.references.append(NameReference(node, context.scope, kind, context.target))

    def visit_Attribute(self, node: ast.Attribute | ast.Name, context: _Context) -> None:
        if isinstance(node.ctx, ast.Load):
            self._visit_reference(node, context)
        elif isinstance(node, ast.Attribute):  # setting an attribute uses its object
            self._push([node.value], context)

    visit_Name = visit_Attribute

    def visit_Call(self, node: ast.Call, context: _Context) -> None:
        inside = context.inside
        arguments = list(node.args)
        if attribute_call(node) is not None:
            self._add_reference(node, inside)
            if dotted_name(arguments[0]):
                self._mention_chain(arguments.pop(0), inside)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        checking = (
            inside.using(UseKind.TYPE_CHECK) if inside.role is UseKind.MODULE_LEVEL else inside
        )
        for number, argument in enumerate(arguments):
            only_checked = _is_type_check(name, number, len(arguments))
            self._push_iterable(argument, checking if only_checked else inside)
        self._push((word.value for word in node.keywords), inside)
        if isinstance(node.func, (ast.Name, ast.Attribute)):
            self._visit_reference(node.func, context, is_called=True)
        else:
            self._push([node.func], context)

    def _push_iterable(self, node: ast.expr, context: _Context) -> None:
        """Push an iterable that is consumed immediately, so a generator expression is not late."""
        if isinstance(node, ast.GeneratorExp):
            self.visit_GeneratorExp(node, context, is_consumed=True)
        else:
            self._push([node], context)

    def visit_Compare(self, node: ast.Compare, context: _Context) -> None:
        inside = context.inside
        is_safe = all(isinstance(each, _SAFE_COMPARISONS) for each in node.ops)
        is_check = is_safe and inside.role is UseKind.MODULE_LEVEL
        self._push(
            [node.left, *node.comparators], inside.using(UseKind.TYPE_CHECK) if is_check else inside
        )

    def visit_Constant(self, node: ast.Constant, context: _Context) -> None:
        if not isinstance(node.value, str):
            return
        if len(node.value) <= _MAX_NAME:
            self._mention(context, *node.value.replace(":", ".").split("."))
        if context.role is UseKind.ANNOTATION:  # quoted: its uses are on the string's line
            parsed = parse_source(node.value.strip())
            for statement in parsed.tree.body[:1] if isinstance(parsed, ParsedSource) else ():
                if isinstance(statement, ast.Expr):
                    for part in ast.walk(statement.value):
                        if hasattr(part, "lineno"):
                            part.lineno = node.lineno
                    self._push([statement.value], context)

    def visit_Subscript(self, node: ast.Subscript, context: _Context) -> None:
        self._push([node.value], context)
        if context.role is not UseKind.ANNOTATION:
            self._push([node.slice], context.inside)
            return
        special = last_name(node.value)
        if special == "Literal":
            return
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        annotations = 1 if special == "Annotated" else len(parts)
        self._push(parts[:annotations], context)
        self._push(parts[annotations:], context.using(UseKind.MODULE_LEVEL))

    def visit_GeneratorExp(self, node: Any, context: _Context, is_consumed: bool = False) -> None:
        scope = context.scope
        # A generator expression runs only when it is consumed.
        is_late = context.is_late or (isinstance(node, ast.GeneratorExp) and not is_consumed)
        inner = NameScope(
            scope.module, scope, scope.label, scope.unit, is_late, is_comprehension=True
        )
        inside = _Context(inner, is_late)
        for number, each in enumerate(node.generators):
            inner.bind_opaque(each.target)
            self._push([each.iter], context.using(UseKind.MODULE_LEVEL) if number == 0 else inside)
            self._push([each.target, *each.ifs], inside)
        self._push((getattr(node, name, None) for name in ("elt", "key", "value")), inside)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp

    def visit_NamedExpr(self, node: ast.NamedExpr, context: _Context) -> None:
        scope = context.scope
        while scope.is_comprehension and scope.parent is not None:
            scope = scope.parent
        scope.bind(node.target.id, Assigned(node.value, context.scope))
        self._push([node.value], context.inside)

    def visit_Lambda(self, node: ast.Lambda, context: _Context) -> None:
        scope = self._function_scope(
            node, context, context.scope.qualified("<lambda>"), context.scope.unit
        )
        self._push([node.body], _Context(scope, is_late=True))

    def visit_If(self, node: ast.If | ast.While | ast.IfExp, context: _Context) -> None:
        holds = known_truth(node.test, _known_condition)
        self._push([node.test], context.inside)
        for branch, skipped in ((node.body, False), (node.orelse, True)):
            if holds is not skipped:
                self._push(branch if isinstance(branch, list) else [branch], context)

    visit_While = visit_IfExp = visit_If

    def visit_Expr(self, node: ast.Expr, context: _Context) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self._push([node.value], context)

    def visit_Import(self, node: ast.Import, context: _Context) -> None:
        for alias in node.names:
            root = alias.name.partition(".")[0]
            self._mention(context, *alias.name.split("."))
            context.scope.bind(alias.asname or root, Imported(alias.name if alias.asname else root))

    def visit_ImportFrom(self, node: ast.ImportFrom, context: _Context) -> None:
        source = resolve_relative(self._table.package, node.level, node.module or "")
        if source is None:
            return
        for alias in node.names:
            if alias.name == "*":
                context.scope.stars.append(source)
            else:
                self._mention(context, alias.name)
                context.scope.bind(alias.asname or alias.name, Imported(source, alias.name))

    def visit_Assign(self, node: ast.Assign, context: _Context) -> None:
        for target in node.targets:
            _bind_target(target, node.value, context.scope)
        self._push([node.value, *node.targets], context)

    def visit_AnnAssign(self, node: ast.AnnAssign, context: _Context) -> None:
        if node.value is not None:
            _bind_target(node.target, node.value, context.scope)
        self._push([node.value, node.target], context)
        self._push([node.annotation], context.using(UseKind.ANNOTATION))

    def visit_For(self, node: ast.For | ast.AsyncFor, context: _Context) -> None:
        context.scope.bind_opaque(node.target)
        self._push_iterable(node.iter, context)
        self._push([node.target, *node.body, *node.orelse], context)

    visit_AsyncFor = visit_For

    def visit_With(self, node: ast.With | ast.AsyncWith, context: _Context) -> None:
        for item in node.items:
            if item.optional_vars is not None:
                _bind_target(item.optional_vars, item.context_expr, context.scope)
            self._push([item.context_expr, item.optional_vars], context)
        self._push(node.body, context)

    visit_AsyncWith = visit_With

    def visit_ExceptHandler(self, node: ast.ExceptHandler, context: _Context) -> None:
        if node.name is not None:
            context.scope.bind(node.name)
        self._push(node.body, context)
        for each in node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]:
            # Mocked exceptions are classes, as "except" requires; other mocks are not.
            is_check = last_name(each).endswith(_EXCEPTIONS)
            self._push([each], context.using(UseKind.TYPE_CHECK) if is_check else context)

    def visit_Global(self, node: ast.Global, context: _Context) -> None:
        context.scope.redirected.update(dict.fromkeys(node.names, context.scope.top))

    def visit_Nonlocal(self, node: ast.Nonlocal, context: _Context) -> None:
        for name in node.names:
            outer = context.scope.parent
            if outer is not None:  # the binding may follow later in the outer function
                context.scope.redirected[name] = outer.binder(name) or outer

    def visit_MatchAs(self, node: Any, context: _Context) -> None:
        name = getattr(node, "name", None) or getattr(node, "rest", None)
        if name is not None:
            context.scope.bind(name)
        self._push(ast.iter_child_nodes(node), context)

    visit_MatchStar = visit_MatchMapping = visit_MatchAs

    def visit_MatchClass(self, node: ast.MatchClass, context: _Context) -> None:
        self._mention(context, *node.kwd_attrs)
        self._push([node.cls], context.using(UseKind.TYPE_CHECK))
        self._push([*node.patterns, *node.kwd_patterns], context)

    def visit_MatchValue(self, node: ast.MatchValue, context: _Context) -> None:
        self._push([node.value], context.using(UseKind.TYPE_CHECK))

    def visit_FunctionDef(self, node: Function, context: _Context) -> None:
        outer = context.scope
        label = outer.qualified(node.name)
        decorators = [d for d in node.decorator_list if last_name(d) not in _HARMLESS_DECORATORS]
        is_method = outer.definition is not None
        if not outer.unit:
            unit = FunctionUnit(node.name, outer if is_method else None, bool(decorators))
            self._table.units[label] = unit
        outer.bind(node.name)
        if decorators:
            outer.bind(node.name, Decorated(label, tuple(decorators), outer))
        self._push(node.decorator_list, context.using(UseKind.DECORATOR, label))
        scope = self._function_scope(node, context, label, outer.unit or label)
        notes = [each.annotation for each in parameters_of(node)]
        parameters = getattr(node, "type_params", [])
        self._push([*notes, node.returns, *parameters], context.using(UseKind.ANNOTATION))
        first = [*node.args.posonlyargs, *node.args.args][:1]
        is_static = any(last_name(each) == "staticmethod" for each in node.decorator_list)
        if first and is_method and not is_static:
            scope.bind(first[0].arg, Instance(outer))
        self._push(node.body, _Context(scope, is_late=True))

    visit_AsyncFunctionDef = visit_FunctionDef

    def _function_scope(
        self, node: Function | ast.Lambda, context: _Context, label: str, unit: str
    ) -> NameScope:
        """Return the scope of a function's body. Defaults of parameters are outside of it."""
        self._push([*node.args.defaults, *node.args.kw_defaults], context.inside)
        scope = NameScope(context.scope.module, context.scope, label, unit, is_late=True)
        for parameter in parameters_of(node):
            scope.bind(parameter.arg)
        return scope

    def visit_ClassDef(self, node: ast.ClassDef, context: _Context) -> None:
        outer = context.scope
        label = outer.qualified(node.name)
        body = NameScope(outer.module, outer, label, outer.unit, context.is_late, node)
        outer.bind(node.name, DefinedClass(body))
        if node.decorator_list:
            outer.bind(node.name, Decorated(label, tuple(node.decorator_list), outer))
        if not outer.unit:
            self._table.classes[label] = body
        self._push(node.decorator_list, context.using(UseKind.DECORATOR, label))
        bases = [*node.bases, *(word.value for word in node.keywords)]
        self._push(bases, context.using(UseKind.BASE_CLASS, label))
        self._push(getattr(node, "type_params", []), context.using(UseKind.ANNOTATION))
        self._push(node.body, _Context(body, context.is_late))

    def visit_TypeAlias(self, node: Any, context: _Context) -> None:
        context.scope.bind(node.name.id)
        self._push([*node.type_params, node.value], context.using(UseKind.ANNOTATION))


def _bind_target(target: ast.expr, value: ast.expr, scope: NameScope) -> None:
    if isinstance(target, ast.Name):
        scope.bind(target.id, Assigned(value, scope))
    elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        # An attribute that a method sets on its instance is visible in all methods.
        name = target.value.id
        binder = scope.binder(name)
        for meaning in binder.bindings.get(name, ()) if binder is not None else ():
            if isinstance(meaning, Instance):
                meaning.body.bind(target.attr, Assigned(value, scope))
    elif isinstance(target, (ast.Tuple, ast.List)):
        values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
        is_starred = any(isinstance(each, ast.Starred) for each in target.elts)
        if len(values) == len(target.elts) and not is_starred:
            for each, its_value in zip(target.elts, values, strict=True):
                _bind_target(each, its_value, scope)
        else:
            scope.bind_opaque(target)


def _known_condition(test: ast.expr) -> bool | None:
    """Return the value of ``TYPE_CHECKING`` and ``__name__ == "__main__"``; None for others."""
    if is_type_checking(test):
        return False
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    sides = (test.left, test.comparators[0])
    is_name = any(isinstance(each, ast.Name) and each.id == "__name__" for each in sides)
    is_main = any(isinstance(each, ast.Constant) and each.value == "__main__" for each in sides)
    if not (is_name and is_main):
        return None
    return {ast.Eq: False, ast.NotEq: True}.get(type(test.ops[0]))


def _is_type_check(function: str, number: int, count: int) -> bool:
    """Return whether a builtin only inspects an argument's type or identity."""
    if function == "isinstance":
        return number == 1
    return function == "issubclass" or (function in _TYPE_CHECKS and number == 0 and count <= 2)
