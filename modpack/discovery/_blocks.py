"""Where a statement stands: the blocks around it, and the names that it sees there."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["Block", "Origins", "Part", "Scope", "qualified_name", "resolve_relative"]

# The modules whose names mean something to the scan.
_KNOWN_ROOTS = frozenset(
    {"builtins", "contextlib", "importlib", "os", "pkgutil", "platform", "sys", "typing"}
    | {"typing_extensions"}
)
_LONGEST_CHAIN = 4  # importlib.machinery.PathFinder.find_spec


class Part(Enum):
    """Which of a statement's (or an expression's) parts a block is."""

    BODY = "body"
    ELSE = "else"
    FINALLY = "finally"
    REST = "rest"
    """What follows a statement that leaves the body around it unless its condition says so."""


@dataclass(eq=False)
class Scope:
    """The names that imports and assignments give to things, in one function, class or module.

    Attributes:
        parent: the scope around it; None for a module.
        names: name -> dotted name of what it stands for. One that starts with a dot is the
            scanned module's own.
        declared_global: names that a ``global`` statement gives to the module.
        owner: the function or class whose scope it is; None for a module.
    """

    parent: Scope | None = None
    names: dict[str, str] = field(default_factory=dict)
    declared_global: set[str] = field(default_factory=set)
    owner: ast.stmt | ast.Lambda | None = None

    def binds_in_module(self, name: str) -> bool:
        """Whether an assignment to ``name`` here makes a name of the module."""
        return self.parent is None or name in self.declared_global

    def bind(self, name: str, meaning: str) -> None:
        """Let ``name`` stand for something from here on.

        A name of the standard library survives its stand-in, as in ``try: import importlib``
        followed by ``except ImportError: importlib = None``.
        """
        before = self.names.get(name)
        if before is None or not _is_known(before) or _is_known(meaning):
            self.names[name] = meaning

    def meaning_of(self, name: str) -> str:
        """What ``name`` stands for; itself where nothing binds it."""
        scope = self.binding(name)
        return name if scope is None else scope.names[name]

    def binding(self, name: str) -> Scope | None:
        """The nearest scope that gives ``name`` a meaning."""
        scope: Scope | None = self
        while scope is not None:
            # A method does not see the names of its class.
            seen = scope is self or not isinstance(scope.owner, ast.ClassDef)
            if seen and name in scope.names:
                return scope
            scope = scope.parent
        return None


@dataclass(eq=False)
class Block:
    """A run of statements, or an expression's part, below something that may matter to it.

    Attributes:
        parent: the block around it; None for a module's body.
        scope: where its names live.
        owner: the statement, handler or expression that it is a part of.
        part: which part of it.
    """

    parent: Block | None
    scope: Scope
    owner: ast.AST
    part: Part = Part.BODY

    def inside(self, owner: ast.AST, part: Part = Part.BODY, scope: Scope | None = None) -> Block:
        """A block inside this one."""
        return Block(self, scope or self.scope, owner, part)


class Origins:
    """What names are bound to, and where.

    Kept apart from the scopes: blocks know theirs, and a scope that knew blocks would close a
    circle. A source's tree would then outlive its scan until Python searches for such circles.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[Scope, str], list[tuple[Block, ast.AST | None]]] = {}

    def add(self, name: str, scope: Scope, block: Block, value: ast.AST | None) -> None:
        """Keep one binding.

        Args:
            name: the name.
            scope: where the name lives.
            block: where the statement stands.
            value: an expression, the definition of a function, or None for anything else.
        """
        self._found.setdefault((scope, name), []).append((block, value))

    def of(self, name: str, scope: Scope) -> Sequence[tuple[Block, ast.AST | None]]:
        """Every binding of ``name`` as a scope sees it."""
        binding = scope.binding(name)
        return () if binding is None else self._found.get((binding, name), ())


def qualified_name(node: ast.AST, scope: Scope) -> str | None:
    """The dotted name of what an expression such as ``il.util.find_spec`` refers to.

    Returns:
        The name with imports' aliases resolved; None if it is no plain chain of names.
    """
    attributes: list[str] = []
    while isinstance(node, ast.Attribute) and len(attributes) < _LONGEST_CHAIN:
        attributes.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([scope.meaning_of(node.id), *reversed(attributes)])


def resolve_relative(package: str, level: int, name: str) -> str | None:
    """The absolute name of a relative import (PEP 328).

    Args:
        package: the package that the import starts from; ``""`` if there is none.
        level: number of leading dots; 0 is an absolute import.
        name: what follows the dots; may be empty.

    Returns:
        The absolute name; None if the dots lead beyond the top-level package.

    >>> resolve_relative("a.b", 2, "c"), resolve_relative("a.b", 3, "c")
    ('a.c', None)
    """
    if level == 0:
        return name
    parts = package.split(".") if package else []
    base = parts[: len(parts) - level + 1]
    if len(parts) < level:
        return None
    return ".".join([*base, name] if name else base)


def _is_known(meaning: str) -> bool:
    return meaning.partition(".")[0] in _KNOWN_ROOTS
