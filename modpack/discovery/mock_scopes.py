"""One module for the search for uses of mocks: what its scopes bind, and what it mentions."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from modpack.core.plan import UseKind
from modpack.discovery.syntax import last_name


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
