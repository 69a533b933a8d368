"""One pass over a module for the search for uses of mocks: its scopes, names, and their uses."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from modpack.core.plan import UseKind
from modpack.discovery.conditions import known_truth
from modpack.discovery.import_scanner import literal_exports, mentions_exports
from modpack.discovery.mock_scopes import (
    Assigned,
    Binding,
    Decorated,
    Defined,
    Imported,
    Instance,
    ModuleTable,
    NameScope,
    Reference,
    ScopeKind,
    Unit,
    attribute_call,
)
from modpack.discovery.syntax import (
    COMPREHENSIONS,
    ParsedSource,
    dotted_name,
    is_type_checking,
    last_name,
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
_ASKS = frozenset({"hasattr", "callable", "id", "type", "repr", "str"})


class _Place(NamedTuple):
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

    def as_role(self, role: UseKind) -> _Place:
        """The same, where names are used for something else."""
        return self if role is self.role else _Place(self.scope, self.is_late, role)

    def making(self, target: str, role: UseKind) -> _Place:
        """For the decorators and bases of something."""
        return _Place(self.scope, self.is_late, role, target)

    @property
    def plain(self) -> _Place:
        """The same, where names are used in no special way."""
        return self.as_role(UseKind.VALUE)

    @property
    def inside(self) -> _Place:
        """For the parts of an expression that is no name: an annotation has only annotations."""
        return self if self.role is UseKind.ANNOTATION else self.plain


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


class _Reader:
    """One pass over a module, with a stack instead of recursion.

    Args:
        module: the module's name.
        package: the package that it is in, or is.
    """

    def __init__(self, module: str, package: str) -> None:
        self._module = module
        self._package = package
        self._table = ModuleTable(NameScope(module), package)
        self._stack: list[tuple[ast.AST, _Place]] = []

    def table(self, tree: ast.Module) -> ModuleTable:
        self._push(tree.body, _Place(self._table.scope))
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

    def _push(self, nodes: Iterable[ast.AST | None], place: _Place) -> None:
        found = [(node, place) for node in nodes if node is not None]
        self._stack.extend(reversed(found))

    def _others(self, node: ast.AST, place: _Place) -> None:
        inside = place if isinstance(node, _KEEPS_ROLE) else place.inside
        self._push(ast.iter_child_nodes(node), inside)

    def _mention(self, place: _Place, *words: str) -> None:
        for word in words:
            self._table.mentions[word].add(place.scope.unit)

    def _bind_opaque(self, target: ast.expr, place: _Place) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                place.scope.bind(node.id)

    def _name(self, node: ast.Name, place: _Place) -> None:
        if isinstance(node.ctx, ast.Load):
            self._refer(node, place)

    def _attribute(self, node: ast.Attribute, place: _Place) -> None:
        if isinstance(node.ctx, ast.Load):
            self._refer(node, place)
        else:  # what it is set on is used
            self._push([node.value], place)

    def _refer(self, node: ast.expr, place: _Place, is_called: bool = False) -> None:
        root = self._mention_chain(node, place)
        if isinstance(root, ast.Name):
            self._note(node, place, is_called)
            return
        if node is not root and isinstance(root, ast.Call):
            self._note(node, place, is_called)
        self._push([root], place.inside)

    def _mention_chain(self, node: ast.expr, place: _Place) -> ast.expr:
        """Mention what stands in a chain of attributes; returns what it begins with."""
        while isinstance(node, ast.Attribute):
            self._mention(place, node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            self._mention(place, node.id)
        return node

    def _note(self, node: ast.expr, place: _Place, is_called: bool = False) -> None:
        kind = place.role
        if kind is UseKind.VALUE and is_called:
            kind = UseKind.CALL
        if place.is_late and kind not in (UseKind.ANNOTATION, UseKind.CHECK):
            kind = UseKind.FUNCTION
        elif not place.is_late and kind is UseKind.CHECK:
            kind = UseKind.VALUE
        self._table.references.append(Reference(node, place.scope, kind, node.lineno, place.target))

    def _call(self, node: ast.Call, place: _Place) -> None:
        self._arguments(node, place.inside)
        if isinstance(node.func, (ast.Name, ast.Attribute)):
            self._refer(node.func, place, is_called=True)
        else:
            self._push([node.func], place)

    def _arguments(self, node: ast.Call, place: _Place) -> None:
        arguments = list(node.args)
        if attribute_call(node) is not None:
            self._note(node, place)
            if dotted_name(arguments[0]):
                self._mention_chain(arguments.pop(0), place)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        asks = place.as_role(UseKind.CHECK) if place.role is UseKind.VALUE else place
        for number, argument in enumerate(arguments):
            only_asked = _is_asked(name, number, len(arguments))
            self._push_consumed([argument], asks if only_asked else place)
        self._push((word.value for word in node.keywords), place)

    def _push_consumed(self, nodes: Iterable[ast.expr], place: _Place) -> None:
        """Push what is read to its end at once, generator expressions included."""
        for node in nodes:
            if isinstance(node, ast.GeneratorExp):
                self._comprehension(node, place, is_consumed=True)
            else:
                self._push([node], place)

    def _compare(self, node: ast.Compare, place: _Place) -> None:
        is_safe = all(isinstance(each, _SAFE_COMPARISONS) for each in node.ops)
        asks = is_safe and place.inside.role is UseKind.VALUE
        inside = place.inside.as_role(UseKind.CHECK) if asks else place.inside
        self._push([node.left, *node.comparators], inside)

    def _constant(self, node: ast.Constant, place: _Place) -> None:
        if not isinstance(node.value, str):
            return
        if len(node.value) <= _LONGEST_NAME:
            self._mention(place, *node.value.replace(":", ".").split("."))
        if place.role is UseKind.ANNOTATION:
            self._push(_quoted(node), place)

    def _subscript(self, node: ast.Subscript, place: _Place) -> None:
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

    def _comprehension(self, node: Any, place: _Place, is_consumed: bool = False) -> None:
        scope = place.scope
        inner = NameScope(self._module, ScopeKind.FUNCTION, scope, scope.label, scope.unit)
        inner.is_comprehension = True
        # What a generator expression does, it does when somebody asks for it.
        waits = isinstance(node, ast.GeneratorExp) and not is_consumed
        inner.is_late = place.is_late or waits
        inside = _Place(inner, inner.is_late)
        for number, each in enumerate(node.generators):
            self._bind_opaque(each.target, inside)
            self._push([each.iter], place.plain if number == 0 else inside)
            self._push([each.target, *each.ifs], inside)
        self._push((getattr(node, name, None) for name in ("elt", "key", "value")), inside)

    def _if_expression(self, node: ast.IfExp, place: _Place) -> None:
        holds = _outcome_of(node.test)
        self._push([node.test], place.inside)
        self._push([node.body] if holds is not False else (), place)
        self._push([node.orelse] if holds is not True else (), place)

    def _walrus(self, node: ast.NamedExpr, place: _Place) -> None:
        scope = place.scope
        while scope.is_comprehension and scope.parent is not None:
            scope = scope.parent
        scope.bind(node.target.id, Assigned(node.value, place.scope))
        self._push([node.value], place.inside)

    def _if(self, node: ast.If | ast.While, place: _Place) -> None:
        holds = _outcome_of(node.test)
        self._push([node.test], place)
        self._push(node.body if holds is not False else (), place)
        self._push(node.orelse if holds is not True else (), place)

    def _expression(self, node: ast.Expr, place: _Place) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self._push([node.value], place)

    def _import(self, node: ast.Import, place: _Place) -> None:
        for alias in node.names:
            root = alias.name.partition(".")[0]
            self._mention(place, *alias.name.split("."))
            if alias.asname is None:
                place.scope.bind(root, Imported(root))
            else:
                place.scope.bind(alias.asname, Imported(alias.name))

    def _import_from(self, node: ast.ImportFrom, place: _Place) -> None:
        source = resolve_relative(self._package, node.level, node.module or "")
        if source is None:
            return
        for alias in node.names:
            if alias.name == "*":
                place.scope.stars.append(source)
            else:
                self._mention(place, alias.name)
                place.scope.bind(alias.asname or alias.name, Imported(source, alias.name))

    def _assign(self, node: ast.Assign, place: _Place) -> None:
        for target in node.targets:
            self._bind_target(target, node.value, place)
        self._push([node.value, *node.targets], place)

    def _annotated(self, node: ast.AnnAssign, place: _Place) -> None:
        if node.value is not None:
            self._bind_target(node.target, node.value, place)
        self._push([node.value, node.target], place)
        self._push([node.annotation], place.as_role(UseKind.ANNOTATION))

    def _loop(self, node: ast.For | ast.AsyncFor, place: _Place) -> None:
        self._bind_opaque(node.target, place)
        self._push_consumed([node.iter], place)
        self._push([node.target, *node.body, *node.orelse], place)

    def _with(self, node: ast.With | ast.AsyncWith, place: _Place) -> None:
        for item in node.items:
            if item.optional_vars is not None:
                self._bind_target(item.optional_vars, item.context_expr, place)
            self._push([item.context_expr, item.optional_vars], place)
        self._push(node.body, place)

    def _handler(self, node: ast.ExceptHandler, place: _Place) -> None:
        if node.name is not None:
            place.scope.bind(node.name)
        self._push(node.body, place)
        types = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        for each in types:
            # Stand-ins of exceptions are classes, which "except" needs; others are not.
            asks = last_name(each).endswith(_EXCEPTIONS)
            self._push([each], place.as_role(UseKind.CHECK) if asks else place)

    def _global(self, node: ast.Global, place: _Place) -> None:
        place.scope.elsewhere.update(dict.fromkeys(node.names, place.scope.top))

    def _nonlocal(self, node: ast.Nonlocal, place: _Place) -> None:
        for name in node.names:
            around = place.scope.parent
            if around is not None:  # what binds it may follow below
                place.scope.elsewhere[name] = around.binder(name) or around

    def _capture(self, node: Any, place: _Place) -> None:
        """A pattern that binds a name."""
        name = getattr(node, "name", None) or getattr(node, "rest", None)
        if name is not None:
            place.scope.bind(name)
        self._push(ast.iter_child_nodes(node), place)

    def _class_pattern(self, node: ast.MatchClass, place: _Place) -> None:
        self._mention(place, *node.kwd_attrs)
        self._push([node.cls], place.as_role(UseKind.CHECK))
        self._push([*node.patterns, *node.kwd_patterns], place)

    def _value_pattern(self, node: ast.MatchValue, place: _Place) -> None:
        self._push([node.value], place.as_role(UseKind.CHECK))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, place: _Place) -> None:
        around = place.scope
        label = _qualified(around, node.name)
        harmful = [each for each in node.decorator_list if not _is_harmless(each)]
        if not around.unit:
            body = around if around.kind is ScopeKind.CLASS else None
            self._table.units[label] = Unit(node.name, body, bool(harmful))
        decorators = tuple(harmful)
        around.bind(node.name, *([Decorated(label, decorators, around)] if decorators else []))
        self._push(node.decorator_list, place.making(label, UseKind.DECORATOR))
        self._annotations(node, place)
        inside = self._function_scope(node, place, label)
        self._push(node.body, _Place(inside, is_late=True))

    def _lambda(self, node: ast.Lambda, place: _Place) -> None:
        self._push([*node.args.defaults, *node.args.kw_defaults], place.inside)
        inside = self._function_scope(node, place, _qualified(place.scope, "<lambda>"))
        self._push([node.body], _Place(inside, is_late=True))

    def _function_scope(self, node: Any, place: _Place, label: str) -> NameScope:
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
        if named and around.kind is ScopeKind.CLASS and is_function and not _is_static(node):
            scope.bind(named[0].arg, Instance(around))
        return scope

    def _annotations(self, node: ast.FunctionDef | ast.AsyncFunctionDef, place: _Place) -> None:
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += filter(None, [arguments.vararg, arguments.kwarg])
        self._push([*arguments.defaults, *arguments.kw_defaults], place.plain)
        notes = [each.annotation for each in every]
        parameters = getattr(node, "type_params", [])
        self._push([*notes, node.returns, *parameters], place.as_role(UseKind.ANNOTATION))

    def _class(self, node: ast.ClassDef, place: _Place) -> None:
        around = place.scope
        label = _qualified(around, node.name)
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
        self._push(node.body, _Place(body, place.is_late))

    def _type_alias(self, node: Any, place: _Place) -> None:
        place.scope.bind(node.name.id)
        self._push([*node.type_params, node.value], place.as_role(UseKind.ANNOTATION))

    def _bind_target(self, target: ast.expr, value: ast.expr, place: _Place) -> None:
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

    def _bind_attribute(self, name: str, attribute: str, value: ast.expr, place: _Place) -> None:
        """What a method keeps in its instance can be taken from it by any method."""
        binder = place.scope.binder(name)
        for meaning in binder.bindings[name] if binder is not None else ():
            if isinstance(meaning, Instance):
                meaning.body.bind(attribute, Assigned(value, place.scope))


_HANDLERS: dict[str, Callable[[Any, Any, _Place], None]] = {
    "IfExp": _Reader._if_expression,
    "NamedExpr": _Reader._walrus,
    "Name": _Reader._name,
    "Attribute": _Reader._attribute,
    "Call": _Reader._call,
    "Compare": _Reader._compare,
    "Constant": _Reader._constant,
    "Subscript": _Reader._subscript,
    **{kind.__name__: _Reader._comprehension for kind in COMPREHENSIONS},
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
"""What deals with which kind of node; the parts of others are looked at one by one."""


def _qualified(scope: NameScope, name: str) -> str:
    """The qualified name of what is defined in a scope."""
    if scope.kind is ScopeKind.FUNCTION and not scope.label.endswith("<lambda>"):
        return f"{scope.label}.<locals>.{name}" if scope.label else name
    return f"{scope.label}.{name}" if scope.label else name


def _outcome_of(test: ast.expr) -> bool | None:
    """What a condition is known to be in a package; None if it may be either."""
    return known_truth(test, lambda part: False if is_type_checking(part) else _is_script(part))


def _is_script(test: ast.expr) -> bool | None:
    """What ``__name__ == "__main__"`` is; None for other conditions."""
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


def _is_harmless(decorator: ast.expr) -> bool:
    """Whether a decorator hands what it decorates to nobody."""
    return last_name(decorator) in _HARMLESS_DECORATORS


def _is_static(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a method gets neither an instance nor its class."""
    return any(last_name(each) == "staticmethod" for each in node.decorator_list)


def _quoted(node: ast.Constant) -> Iterator[ast.expr]:
    """The expression in a quoted annotation, on the line of the quote."""
    parsed = parse_source(str(node.value).strip())
    statements = parsed.tree.body if isinstance(parsed, ParsedSource) else []
    for statement in statements[:1]:
        if isinstance(statement, ast.Expr):
            for part in ast.walk(statement.value):
                if hasattr(part, "lineno"):
                    part.lineno = node.lineno
            yield statement.value
