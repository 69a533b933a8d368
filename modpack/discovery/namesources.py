"""Where a name of packaged code really comes from: defined in its module, or taken from elsewhere.

``net.py`` with ``import os`` has an attribute ``os``, and through it everything that ``os`` has.
Whoever asks what a pickle may reach by a name has to know.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from modpack.core.imports import ScanFailure
from modpack.core.names import parents
from modpack.discovery._bindings import bindings
from modpack.discovery._nodes import FUNCTIONS
from modpack.discovery._parse import parse_source

__all__ = ["NameSources", "Outside"]

_LONGEST: Final = 40
"""Parts of a dotted name; ``a = a.b`` would make it longer for ever."""
_MOST_STEPS: Final = 2_000
"""Ways that are followed for one name."""


@dataclass(frozen=True)
class Outside:
    """What a name of packaged code is, where it is not defined in the package.

    Attributes:
        module: the module it is taken from; empty if it is taken round too many corners.
        name: what is taken from it, dotted; empty for the module itself.
        via: the packaged module that takes it.
    """

    module: str
    name: str
    via: str


@dataclass(frozen=True)
class _Taken:
    """What a binding leads to: a module, or a name in one, which may be the same one."""

    module: str
    parts: tuple[str, ...] = ()


@dataclass
class _Scope:
    """What the names of a module, or of a class in it, are bound to."""

    taken: dict[str, list[_Taken]] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)
    stars: list[str] = field(default_factory=list)


class NameSources:
    """Looks names up in the sources of a package.

    Args:
        source_of: the source of a packaged module, and whether it is a package; None for what is
            not in the package, or has no source.
    """

    def __init__(self, source_of: Callable[[str], tuple[bytes, bool] | None]) -> None:
        self._source_of = source_of
        self._scope_of = lru_cache(maxsize=None)(self._read)

    def outside(self, module: str, name: str) -> tuple[Outside, ...]:
        """All that a name of a packaged module may be besides something of the package's own.

        Args:
            module: a module of the package.
            name: what is taken from it, dotted.
        """
        parts = tuple(name.split(".")) if name else ()
        found: dict[Outside, None] = {}
        waiting = [(module, parts, module)]
        seen = set(waiting)
        while waiting:
            step = waiting.pop()
            if len(seen) > _MOST_STEPS:  # nobody but who wants to hide something writes that
                found[Outside("", name, module)] = None
                break
            for following in self._next(*step):
                if isinstance(following, Outside):
                    found[following] = None
                elif following not in seen and len(following[1]) < _LONGEST:
                    seen.add(following)
                    waiting.append(following)
        return tuple(found)

    def _next(
        self, module: str, parts: tuple[str, ...], via: str
    ) -> Iterator[Outside | tuple[str, tuple[str, ...], str]]:
        """What a name of a module may be: of another module, or of none of the package."""
        if self._source_of(module) is None:
            yield Outside(module, ".".join(parts), via)
            return
        scope = self._scope_of(module)
        if scope is None or not parts:
            return
        first, *rest = parts
        for taken in _taken_in(scope, module, parts):
            yield taken.module, taken.parts, module
        submodule = f"{module}.{first}"
        if self._source_of(submodule) is not None:
            yield submodule, tuple(rest), module
        if first not in scope.bound:
            for star in scope.stars:
                yield star, parts, module

    def _read(self, module: str) -> _Scope | None:
        found = self._source_of(module)
        if found is None:
            return None
        source, is_package = found
        parsed = parse_source(source)
        if isinstance(parsed, ScanFailure):
            return None
        return _scope_of_body(parsed.tree.body, module, is_package)


def _taken_in(scope: _Scope, module: str, parts: tuple[str, ...]) -> Iterator[_Taken]:
    """What the first part of a name leads to, in a module, or in a class of it."""
    first, *rest = parts
    for taken in scope.taken.get(first, ()):
        yield _Taken(taken.module, (*taken.parts, *rest))
    if first in scope.classes and rest:
        inner = _scope_of_body(scope.classes[first].body, module, False)
        yield from _taken_in(inner, module, tuple(rest))


def _scope_of_body(body: list[ast.stmt], module: str, is_package: bool) -> _Scope:
    scope = _Scope()
    waiting: list[ast.AST] = list(reversed(body))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.stmt):
            _bind(scope, node, module, is_package)
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.expr)):
            waiting += reversed(list(ast.iter_child_nodes(node)))
    return scope


def _bind(scope: _Scope, node: ast.stmt, module: str, is_package: bool) -> None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            meant = alias.name if alias.asname else bound
            scope.bound.add(bound)
            scope.taken.setdefault(bound, []).append(_Taken(meant))
    elif isinstance(node, ast.ImportFrom):
        _bind_from(scope, node, _imported_from(node, module, is_package))
    elif isinstance(node, ast.ClassDef):
        scope.classes.setdefault(node.name, node)
    for name, value in bindings(node):
        scope.bound.add(name)
        dotted = _dotted(value) if value is not None else None
        if dotted is not None:
            scope.taken.setdefault(name, []).append(_Taken(module, tuple(dotted.split("."))))


def _bind_from(scope: _Scope, node: ast.ImportFrom, module: str) -> None:
    for alias in node.names:
        if alias.name == "*":
            scope.stars.append(module)
            continue
        bound = alias.asname or alias.name
        scope.bound.add(bound)
        scope.taken.setdefault(bound, []).append(_Taken(module, (alias.name,)))


def _imported_from(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    above = [module, *parents(module)] if is_package else list(parents(module))
    base = above[node.level - 1] if node.level <= len(above) else ""
    return f"{base}.{node.module}" if node.module and base else node.module or base


def _dotted(node: ast.expr) -> str | None:
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(attributes)]) if isinstance(node, ast.Name) else None
