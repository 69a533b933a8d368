"""What the classes of a package derive from, read off the sources."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from modpack.core.names import parents
from modpack.discovery.mockuse.table import Assigned, Defined, Imported, ModuleTable, NameScope

__all__ = ["BaseFinder", "Bases"]

_MOST_STEPS = 40
"""From a name to what it stands for: more would be a circle."""
_UNKNOWN = ""


@dataclass(frozen=True)
class Bases:
    """All ancestors of a class, as far as they are known.

    Attributes:
        inside: those in the package.
        outside: dotted names of the others; empty text for one that is not known. Mocked classes
            are left out: nothing comes from them.
    """

    inside: tuple[NameScope, ...] = ()
    outside: tuple[str, ...] = ()


class BaseFinder:
    """Follows the names of base classes.

    Args:
        read: gives the table of an interned module; None if it cannot be parsed.
        interned: the interned modules.
        mocked: the mocked modules.
    """

    def __init__(
        self,
        read: Callable[[str], ModuleTable | None],
        interned: Collection[str],
        mocked: Collection[str],
    ) -> None:
        self._read = read
        self._interned = interned
        self._mocked = mocked
        self._known: dict[NameScope, Bases] = {}

    def bases_of(self, body: NameScope) -> Bases:
        """The ancestors of a class."""
        if body not in self._known:
            self._known[body] = self._find(body)
        return self._known[body]

    def _find(self, body: NameScope) -> Bases:
        inside: dict[NameScope, None] = {}
        outside: dict[str, None] = {}
        waiting = [body]
        while waiting:
            for found in self._direct_bases(waiting.pop()):
                if isinstance(found, str):
                    outside[found] = None
                elif found not in inside and found is not body:
                    inside[found] = None
                    waiting.append(found)
        names = (name for name in outside if not self._is_mocked(name))
        return Bases(tuple(inside), tuple(names))

    def _direct_bases(self, body: NameScope) -> Iterator[NameScope | str]:
        if body.definition is not None and body.parent is not None:
            for base in body.definition.bases:
                yield self._resolved(base, body.parent)

    def _resolved(self, node: ast.expr, scope: NameScope) -> NameScope | str:
        """A class of the package, or the dotted name of another."""
        attributes: list[str] = []
        for _ in range(_MOST_STEPS):
            while isinstance(node, (ast.Attribute, ast.Subscript)):
                if isinstance(node, ast.Attribute):
                    attributes.insert(0, node.attr)
                node = node.value  # Base[T] derives from Base
            if not isinstance(node, ast.Name):
                return _UNKNOWN
            binder = scope.binder(node.id)
            if binder is None:
                is_builtin = hasattr(builtins, node.id) and not attributes
                return f"builtins.{node.id}" if is_builtin else _UNKNOWN
            meanings = binder.bindings.get(node.id, [])
            meaning = meanings[0] if meanings else None
            if isinstance(meaning, Defined):
                return meaning.body if not attributes else _UNKNOWN
            if isinstance(meaning, Imported):
                named = (meaning.module, meaning.name, *attributes)
                return self._imported(".".join(filter(None, named)))
            if not isinstance(meaning, Assigned):
                return _UNKNOWN
            node, scope = meaning.value, meaning.scope
        return _UNKNOWN

    def _imported(self, path: str) -> NameScope | str:
        """What a dotted path leads to, through as many modules of the package as it takes."""
        for _ in range(_MOST_STEPS):
            home = next((each for each in parents(path) if each in self._interned), None)
            if home is None:
                return path
            name, _, rest = path[len(home) + 1 :].partition(".")
            table = self._read(home)
            meanings = table.scope.bindings.get(name, []) if table is not None else []
            meaning = meanings[0] if meanings else None
            if isinstance(meaning, Defined):
                return meaning.body if not rest else _UNKNOWN
            if not isinstance(meaning, Imported):
                return self._from_stars(table, name) if not rest else _UNKNOWN
            path = ".".join(filter(None, (meaning.module, meaning.name, rest)))
        return _UNKNOWN

    def _from_stars(self, table: ModuleTable | None, name: str) -> NameScope | str:
        """What a name is that only a star import can have bound."""
        for star in table.scope.stars if table is not None else ():
            other = self._read(star) if star in self._interned else None
            for meaning in other.scope.bindings.get(name, []) if other is not None else ():
                if isinstance(meaning, Defined):
                    return meaning.body
        return _UNKNOWN

    def _is_mocked(self, name: str) -> bool:
        return any(each in self._mocked for each in (name, *parents(name)))
