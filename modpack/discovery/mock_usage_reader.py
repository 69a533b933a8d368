"""One module for the search for uses of mocks: its scopes, and how it uses names, in one pass."""

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
_LONGEST_NAME = 300
_EXCEPTIONS = ("Error", "Exception", "Warning")
_HARMLESS_DECORATORS = frozenset(
    {"staticmethod", "classmethod", "property", "abstractmethod", "setter", "getter", "deleter"}
    | {"override", "final", "wraps", "cached_property", "lru_cache", "cache", "contextmanager"}
    | {"no_grad", "enable_grad", "inference_mode"}
)
"""Decorators that hand what they decorate to nobody."""
_ASKS = frozenset({"hasattr", "callable", "id", "type", "repr", "str"})


@dataclass(eq=False)
class NameScope:
    """The names that one module, class, function, lambda or comprehension binds.

    Attributes:
        module: the module that it is in.
        parent: the scope around it; None for a module's.
        label: the qualified name of the function or class; empty for a module's.
        unit: the qualified name of the outermost function around it; empty if there is none.
        is_late: whether what is in it runs when a function is called.
        definition: the class statement; None for others.
        is_comprehension: whether it is that of a comprehension.
        bindings: everything that each name is bound to, in source order; an empty list for one
            that is bound to something of no interest.
        elsewhere: names that ``global`` and ``nonlocal`` give to a scope further out.
        stars: modules of which all names are bound.
    """

    module: str
    parent: NameScope | None = None
    label: str = ""
    unit: str = ""
    is_late: bool = False
    definition: ast.ClassDef | None = None
    is_comprehension: bool = False
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    elsewhere: dict[str, NameScope] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)

    @property
    def top(self) -> NameScope:
        """The module's scope."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def qualified(self, name: str) -> str:
        """The qualified name of what is defined here."""
        is_function = self.parent is not None and self.definition is None
        is_named = is_function and not self.label.endswith("<lambda>")
        return f"{self.label}{'.<locals>.' if is_named else '.'}{name}" if self.label else name

    def bind(self, name: str, *meanings: Binding) -> None:
        """Bind a name here, or where a ``global`` statement says."""
        scope = self.elsewhere.get(name, self)
        scope.bindings.setdefault(name, []).extend(meanings)

    def bind_opaque(self, target: ast.expr) -> None:
        """Bind the names in an assignment's target to something of no interest."""
        for name in assigned_names(target):
            self.bind(name)

    def binder(self, name: str) -> NameScope | None:
        """The scope whose binding of a name is seen from here; None if no scope binds it."""
        scope: NameScope | None = self.elsewhere.get(name, self)
        while scope is not None:
            # A method does not see the names of its class.
            if scope is self or scope.definition is None:
                if name in scope.elsewhere:
                    return scope.elsewhere[name]
                if name in scope.bindings:
                    return scope
            scope = scope.parent
        return None


@dataclass(frozen=True)
class Imported:
    """An import: of a module, or of a name in it."""

    module: str
    name: str | None = None


@dataclass(frozen=True)
class Assigned:
    """An expression, in the scope in which it is evaluated."""

    value: ast.expr
    scope: NameScope


@dataclass(frozen=True)
class DefinedClass:
    """A class, by the scope of its body."""

    body: NameScope


@dataclass(frozen=True)
class Decorated:
    """A function or a class with decorators, in its scope."""

    name: str
    decorators: tuple[ast.expr, ...]
    scope: NameScope


@dataclass(frozen=True)
class Instance:
    """The first parameter of a method: an instance of the class, or the class itself."""

    body: NameScope


Binding: TypeAlias = Imported | Assigned | DefinedClass | Decorated | Instance


class NameReference(NamedTuple):
    """A place where a name is used, with all attributes that are taken from it.

    Attributes:
        node: the expression (``tools.log``).
        scope: the scope that it is in.
        kind: how it is used.
        target: the qualified name of the function or class that it decorates, or that derives from
            it; empty for other uses.
    """

    node: ast.expr
    scope: NameScope
    kind: UseKind
    target: str = ""


class FunctionUnit(NamedTuple):
    """A function that is in no other function.

    Attributes:
        name: its name.
        body: the scope of the class that it is a method of; None if it is none.
        is_decorated: whether a decorator may hand it to somebody.
    """

    name: str
    body: NameScope | None
    is_decorated: bool


@dataclass
class ModuleTable:
    """What a module binds and mentions.

    Attributes:
        scope: the module's own scope.
        package: the package that it is in, or is.
        references: every name that code which can run uses, with its attributes.
        mentions: every identifier, attribute and text that can name something, with the units that
            have it; the empty unit is code that runs when the module is imported.
        units: by qualified name.
        classes: the scopes of the classes that are in no function, by qualified name.
        exported: the names in ``__all__``, if that is a plain list.
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
    """Read what a module's source binds and mentions; None if Python cannot parse it.

    Args:
        source: its source.
        module: its absolute name.
        is_package: whether it is a package's ``__init__``.
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
    """Where a node is.

    Attributes:
        scope: its scope.
        is_late: whether it runs when a function is called.
        role: what its names are used for there, if it runs at import time.
        target: what it decorates, or is a base of.
    """

    scope: NameScope
    is_late: bool = False
    role: UseKind = UseKind.MODULE_LEVEL
    target: str = ""

    def using(self, role: UseKind, target: str = "") -> _Context:
        """The same, where names are used for something else."""
        return self if role is self.role else _Context(self.scope, self.is_late, role, target)

    @property
    def inside(self) -> _Context:
        """For the parts of an expression that is no name: an annotation has only annotations."""
        return self if self.role is UseKind.ANNOTATION else self.using(UseKind.MODULE_LEVEL)


class _ModuleReader:
    """One pass over a module, with a stack instead of recursion.

    The methods are those of :class:`ast.NodeVisitor`, by their names.
    """

    def __init__(self, table: ModuleTable) -> None:
        self._table = table
        self._stack: list[tuple[ast.AST, _Context]] = []

    def read(self, tree: ast.Module) -> None:
        self._push(tree.body, _Context(self._table.scope))
        while self._stack:
            node, at = self._stack.pop()
            getattr(self, f"visit_{type(node).__name__}", self._visit_parts)(node, at)

    def _push(self, nodes: Iterable[ast.AST | None], at: _Context) -> None:
        found = [(node, at) for node in nodes if node is not None]
        self._stack.extend(reversed(found))

    def _visit_parts(self, node: ast.AST, at: _Context) -> None:
        self._push(ast.iter_child_nodes(node), at if isinstance(node, _KEEPS_ROLE) else at.inside)

    def _mention(self, at: _Context, *words: str) -> None:
        for word in words:
            self._table.mentions[word].add(at.scope.unit)

    def _mention_chain(self, node: ast.expr, at: _Context) -> ast.expr:
        """Mention the names in a chain of attributes; returns what it begins with."""
        while isinstance(node, ast.Attribute):
            self._mention(at, node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            self._mention(at, node.id)
        return node

    def _refer(self, node: ast.expr, at: _Context, is_called: bool = False) -> None:
        root = self._mention_chain(node, at)
        if isinstance(root, (ast.Name, ast.Call)):
            self._note(node, at, is_called)
        if not isinstance(root, ast.Name):
            self._push([root], at.inside)

    def _note(self, node: ast.expr, at: _Context, is_called: bool = False) -> None:
        kind = at.role
        if kind is UseKind.MODULE_LEVEL and is_called:
            kind = UseKind.CALL
        if at.is_late and kind not in (UseKind.ANNOTATION, UseKind.TYPE_CHECK):
            kind = UseKind.FUNCTION_BODY
        elif not at.is_late and kind is UseKind.TYPE_CHECK:
            kind = UseKind.MODULE_LEVEL
        self._table.references.append(NameReference(node, at.scope, kind, at.target))

    # -- expressions -------------------------------------------------------------------------

    def visit_Attribute(self, node: ast.Attribute | ast.Name, at: _Context) -> None:
        if isinstance(node.ctx, ast.Load):
            self._refer(node, at)
        elif isinstance(node, ast.Attribute):  # what it is set on is used
            self._push([node.value], at)

    visit_Name = visit_Attribute

    def visit_Call(self, node: ast.Call, at: _Context) -> None:
        inside = at.inside
        arguments = list(node.args)
        if attribute_call(node) is not None:
            self._note(node, inside)
            if dotted_name(arguments[0]):
                self._mention_chain(arguments.pop(0), inside)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        asking = inside.using(UseKind.TYPE_CHECK) if inside.role is UseKind.MODULE_LEVEL else inside
        for number, argument in enumerate(arguments):
            only_asked = _is_asked(name, number, len(arguments))
            self._push_consumed(argument, asking if only_asked else inside)
        self._push((word.value for word in node.keywords), inside)
        if isinstance(node.func, (ast.Name, ast.Attribute)):
            self._refer(node.func, at, is_called=True)
        else:
            self._push([node.func], at)

    def _push_consumed(self, node: ast.expr, at: _Context) -> None:
        """Push what is read to its end at once, be it a generator expression."""
        if isinstance(node, ast.GeneratorExp):
            self.visit_GeneratorExp(node, at, is_consumed=True)
        else:
            self._push([node], at)

    def visit_Compare(self, node: ast.Compare, at: _Context) -> None:
        inside = at.inside
        is_safe = all(isinstance(each, _SAFE_COMPARISONS) for each in node.ops)
        asks = is_safe and inside.role is UseKind.MODULE_LEVEL
        self._push(
            [node.left, *node.comparators], inside.using(UseKind.TYPE_CHECK) if asks else inside
        )

    def visit_Constant(self, node: ast.Constant, at: _Context) -> None:
        if not isinstance(node.value, str):
            return
        if len(node.value) <= _LONGEST_NAME:
            self._mention(at, *node.value.replace(":", ".").split("."))
        if at.role is UseKind.ANNOTATION:  # a quoted one, whose uses are on the quote's line
            parsed = parse_source(node.value.strip())
            for statement in parsed.tree.body[:1] if isinstance(parsed, ParsedSource) else ():
                if isinstance(statement, ast.Expr):
                    for part in ast.walk(statement.value):
                        if hasattr(part, "lineno"):
                            part.lineno = node.lineno
                    self._push([statement.value], at)

    def visit_Subscript(self, node: ast.Subscript, at: _Context) -> None:
        self._push([node.value], at)
        if at.role is not UseKind.ANNOTATION:
            self._push([node.slice], at.inside)
            return
        special = last_name(node.value)
        if special == "Literal":
            return
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        annotations = 1 if special == "Annotated" else len(parts)
        self._push(parts[:annotations], at)
        self._push(parts[annotations:], at.using(UseKind.MODULE_LEVEL))

    def visit_GeneratorExp(self, node: Any, at: _Context, is_consumed: bool = False) -> None:
        scope = at.scope
        # What a generator expression does, it does when somebody asks for it.
        is_late = at.is_late or (isinstance(node, ast.GeneratorExp) and not is_consumed)
        inner = NameScope(
            scope.module, scope, scope.label, scope.unit, is_late, is_comprehension=True
        )
        inside = _Context(inner, is_late)
        for number, each in enumerate(node.generators):
            inner.bind_opaque(each.target)
            self._push([each.iter], at.using(UseKind.MODULE_LEVEL) if number == 0 else inside)
            self._push([each.target, *each.ifs], inside)
        self._push((getattr(node, name, None) for name in ("elt", "key", "value")), inside)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp

    def visit_NamedExpr(self, node: ast.NamedExpr, at: _Context) -> None:
        scope = at.scope
        while scope.is_comprehension and scope.parent is not None:
            scope = scope.parent
        scope.bind(node.target.id, Assigned(node.value, at.scope))
        self._push([node.value], at.inside)

    def visit_Lambda(self, node: ast.Lambda, at: _Context) -> None:
        scope = self._function_scope(node, at, at.scope.qualified("<lambda>"), at.scope.unit)
        self._push([node.body], _Context(scope, is_late=True))

    # -- statements --------------------------------------------------------------------------

    def visit_If(self, node: ast.If | ast.While | ast.IfExp, at: _Context) -> None:
        holds = known_truth(node.test, _known_in_package)
        self._push([node.test], at.inside)
        for branch, skipped in ((node.body, False), (node.orelse, True)):
            if holds is not skipped:
                self._push(branch if isinstance(branch, list) else [branch], at)

    visit_While = visit_IfExp = visit_If

    def visit_Expr(self, node: ast.Expr, at: _Context) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self._push([node.value], at)

    def visit_Import(self, node: ast.Import, at: _Context) -> None:
        for alias in node.names:
            root = alias.name.partition(".")[0]
            self._mention(at, *alias.name.split("."))
            at.scope.bind(alias.asname or root, Imported(alias.name if alias.asname else root))

    def visit_ImportFrom(self, node: ast.ImportFrom, at: _Context) -> None:
        source = resolve_relative(self._table.package, node.level, node.module or "")
        if source is None:
            return
        for alias in node.names:
            if alias.name == "*":
                at.scope.stars.append(source)
            else:
                self._mention(at, alias.name)
                at.scope.bind(alias.asname or alias.name, Imported(source, alias.name))

    def visit_Assign(self, node: ast.Assign, at: _Context) -> None:
        for target in node.targets:
            _bind_target(target, node.value, at.scope)
        self._push([node.value, *node.targets], at)

    def visit_AnnAssign(self, node: ast.AnnAssign, at: _Context) -> None:
        if node.value is not None:
            _bind_target(node.target, node.value, at.scope)
        self._push([node.value, node.target], at)
        self._push([node.annotation], at.using(UseKind.ANNOTATION))

    def visit_For(self, node: ast.For | ast.AsyncFor, at: _Context) -> None:
        at.scope.bind_opaque(node.target)
        self._push_consumed(node.iter, at)
        self._push([node.target, *node.body, *node.orelse], at)

    visit_AsyncFor = visit_For

    def visit_With(self, node: ast.With | ast.AsyncWith, at: _Context) -> None:
        for item in node.items:
            if item.optional_vars is not None:
                _bind_target(item.optional_vars, item.context_expr, at.scope)
            self._push([item.context_expr, item.optional_vars], at)
        self._push(node.body, at)

    visit_AsyncWith = visit_With

    def visit_ExceptHandler(self, node: ast.ExceptHandler, at: _Context) -> None:
        if node.name is not None:
            at.scope.bind(node.name)
        self._push(node.body, at)
        for each in node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]:
            # Mocks of exceptions are classes, which "except" needs; others are not.
            asks = last_name(each).endswith(_EXCEPTIONS)
            self._push([each], at.using(UseKind.TYPE_CHECK) if asks else at)

    def visit_Global(self, node: ast.Global, at: _Context) -> None:
        at.scope.elsewhere.update(dict.fromkeys(node.names, at.scope.top))

    def visit_Nonlocal(self, node: ast.Nonlocal, at: _Context) -> None:
        for name in node.names:
            around = at.scope.parent
            if around is not None:  # what binds it may follow below
                at.scope.elsewhere[name] = around.binder(name) or around

    def visit_MatchAs(self, node: Any, at: _Context) -> None:
        name = getattr(node, "name", None) or getattr(node, "rest", None)
        if name is not None:
            at.scope.bind(name)
        self._push(ast.iter_child_nodes(node), at)

    visit_MatchStar = visit_MatchMapping = visit_MatchAs

    def visit_MatchClass(self, node: ast.MatchClass, at: _Context) -> None:
        self._mention(at, *node.kwd_attrs)
        self._push([node.cls], at.using(UseKind.TYPE_CHECK))
        self._push([*node.patterns, *node.kwd_patterns], at)

    def visit_MatchValue(self, node: ast.MatchValue, at: _Context) -> None:
        self._push([node.value], at.using(UseKind.TYPE_CHECK))

    def visit_FunctionDef(self, node: Function, at: _Context) -> None:
        around = at.scope
        label = around.qualified(node.name)
        decorators = [d for d in node.decorator_list if last_name(d) not in _HARMLESS_DECORATORS]
        is_method = around.definition is not None
        if not around.unit:
            unit = FunctionUnit(node.name, around if is_method else None, bool(decorators))
            self._table.units[label] = unit
        around.bind(node.name)
        if decorators:
            around.bind(node.name, Decorated(label, tuple(decorators), around))
        self._push(node.decorator_list, at.using(UseKind.DECORATOR, label))
        scope = self._function_scope(node, at, label, around.unit or label)
        notes = [each.annotation for each in parameters_of(node)]
        parameters = getattr(node, "type_params", [])
        self._push([*notes, node.returns, *parameters], at.using(UseKind.ANNOTATION))
        first = [*node.args.posonlyargs, *node.args.args][:1]
        is_static = any(last_name(each) == "staticmethod" for each in node.decorator_list)
        if first and is_method and not is_static:
            scope.bind(first[0].arg, Instance(around))
        self._push(node.body, _Context(scope, is_late=True))

    visit_AsyncFunctionDef = visit_FunctionDef

    def _function_scope(
        self, node: Function | ast.Lambda, at: _Context, label: str, unit: str
    ) -> NameScope:
        """The scope of a function's body, with its parameters; their defaults are outside."""
        self._push([*node.args.defaults, *node.args.kw_defaults], at.inside)
        scope = NameScope(at.scope.module, at.scope, label, unit, is_late=True)
        for parameter in parameters_of(node):
            scope.bind(parameter.arg)
        return scope

    def visit_ClassDef(self, node: ast.ClassDef, at: _Context) -> None:
        around = at.scope
        label = around.qualified(node.name)
        body = NameScope(around.module, around, label, around.unit, at.is_late, node)
        around.bind(node.name, DefinedClass(body))
        if node.decorator_list:
            around.bind(node.name, Decorated(label, tuple(node.decorator_list), around))
        if not around.unit:
            self._table.classes[label] = body
        self._push(node.decorator_list, at.using(UseKind.DECORATOR, label))
        bases = [*node.bases, *(word.value for word in node.keywords)]
        self._push(bases, at.using(UseKind.BASE_CLASS, label))
        self._push(getattr(node, "type_params", []), at.using(UseKind.ANNOTATION))
        self._push(node.body, _Context(body, at.is_late))

    def visit_TypeAlias(self, node: Any, at: _Context) -> None:
        at.scope.bind(node.name.id)
        self._push([*node.type_params, node.value], at.using(UseKind.ANNOTATION))


def _bind_target(target: ast.expr, value: ast.expr, scope: NameScope) -> None:
    if isinstance(target, ast.Name):
        scope.bind(target.id, Assigned(value, scope))
    elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        # What a method keeps in its instance can be taken from it by any method.
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


def _known_in_package(test: ast.expr) -> bool | None:
    """The outcome of ``TYPE_CHECKING`` and of ``__name__ == "__main__"``; None for others."""
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


def _is_asked(function: str, number: int, count: int) -> bool:
    """Whether a builtin only asks what an argument is."""
    if function == "isinstance":
        return number == 1
    return function == "issubclass" or (function in _ASKS and number == 0 and count <= 2)
