"""One module for the search for uses of mocks: what its scopes bind, and what it mentions.

Expressions that stand for a name: chains of attributes, ``getattr``, imports by call.

Where nodes of a syntax tree stand, and what that says about the names in them.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from modpack.core.plan import UseKind
from modpack.discovery.syntax import ParsedSource, is_type_checking, parse_source


class ScopeKind(Enum):
    """What a scope belongs to."""

    MODULE = "module"
    CLASS = "class"
    FUNCTION = "function"
    """Also a lambda or a comprehension."""


@dataclass(eq=False)
class NameScope:
    """The names that one module, class or function binds.

    Attributes:
        module: the module that it is in.
        kind: what it belongs to.
        parent: the scope around it; None for a module's.
        label: the qualified name of the function or class; empty for a module's.
        unit: the qualified name of the outermost function around it; empty if there is none.
        bindings: everything that each name is bound to, in source order; an empty list for one
            that is bound to something of no interest.
        elsewhere: names that ``global`` and ``nonlocal`` give to a scope further out.
        stars: modules of which all names are bound.
        definition: the class statement; None for others.
        is_comprehension: whether it is that of a comprehension.
        is_late: whether what is in it runs when a function is called.
    """

    module: str
    kind: ScopeKind = ScopeKind.MODULE
    parent: NameScope | None = None
    label: str = ""
    unit: str = ""
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    elsewhere: dict[str, NameScope] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    definition: ast.ClassDef | None = None
    is_comprehension: bool = False
    is_late: bool = False

    @property
    def top(self) -> NameScope:
        """The module's scope."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def bind(self, name: str, *meanings: Binding) -> None:
        """Bind a name here, or where a ``global`` statement says."""
        scope = self.elsewhere.get(name, self)
        scope.bindings.setdefault(name, []).extend(meanings)

    def binder(self, name: str) -> NameScope | None:
        """The scope whose binding of a name is seen from here; None if no scope binds it."""
        scope: NameScope | None = self.elsewhere.get(name, self)
        while scope is not None:
            # A method does not see the names of its class.
            is_seen = scope is self or scope.kind is not ScopeKind.CLASS
            if is_seen and name in scope.elsewhere:
                return scope.elsewhere[name]
            if is_seen and name in scope.bindings:
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
class Defined:
    """A class statement, in its scope; ``body`` is its own."""

    statement: ast.ClassDef
    scope: NameScope
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


Binding: TypeAlias = Imported | Assigned | Defined | Decorated | Instance


class Reference(NamedTuple):
    """A place where a name is used, with all attributes that are taken from it.

    Attributes:
        node: the expression (``tools.log``).
        scope: where it stands.
        kind: how it is used.
        line: 1-based line.
        target: the qualified name of the function or class that it decorates, or that derives from
            it; empty for other uses.
    """

    node: ast.expr
    scope: NameScope
    kind: UseKind
    line: int
    target: str = ""


@dataclass(frozen=True)
class Unit:
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
    """A module.

    Attributes:
        scope: the module's own scope.
        package: the package that it is in, or is.
        references: every name that code which can run uses, with its attributes.
        mentions: every identifier, attribute and text that can name something, with the units in
            which it stands; the empty unit is code that runs when the module is imported.
        units: by qualified name.
        classes: the scopes of the classes that are in no function, by qualified name.
        exported: the names in ``__all__``, if that is a plain list.
    """

    scope: NameScope
    package: str
    references: list[Reference] = field(default_factory=list)
    mentions: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    units: dict[str, Unit] = field(default_factory=dict)
    classes: dict[str, NameScope] = field(default_factory=dict)
    exported: frozenset[str] | None = None


def root_of_chain(node: ast.expr) -> ast.Name | None:
    """The name that ``a.b.c`` begins with; None for anything else."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def last_name(node: ast.AST | None) -> str:
    """The last component of a dotted name; of what is called, for a call; otherwise nothing.

    >>> last_name(ast.parse("typing.Literal", mode="eval").body)
    'Literal'
    """
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def attribute_call(node: ast.AST) -> tuple[ast.expr, str] | None:
    """Of ``getattr(value, "name")``, the value and the name; None for anything else."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return None
    if node.func.id != "getattr" or len(node.args) < 2:
        return None
    name = text_of(node.args[1])
    return None if name is None else (node.args[0], name)


def text_of(node: ast.expr) -> str | None:
    """The text that an expression is, if it is a literal one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def import_call(node: ast.AST) -> str | None:
    """The function by which a call imports, ``import_module`` or ``__import__``; None if none."""
    if not isinstance(node, ast.Call) or not (node.args or node.keywords):
        return None
    name = last_name(node.func)
    return name if name in ("import_module", "__import__") else None


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
