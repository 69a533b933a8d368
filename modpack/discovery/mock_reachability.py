"""Name-based reachability of functions in a package.

A function is dead only if no code that can run mentions its name. Anything unknown counts as a
call: code outside the package, decorators, and names that are computed at run time.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from typing import NamedTuple, TypeAlias

from modpack.core.names import parents, root_of
from modpack.discovery.mock_texts import SourceIndex
from modpack.discovery.mock_usage_reader import (
    Assigned,
    DefinedClass,
    FunctionUnit,
    Imported,
    ModuleTable,
    NameScope,
)

Read: TypeAlias = Callable[[str], ModuleTable | None]
"""Returns the table of an interned module; None if it cannot be parsed."""

_PLAIN_ROOTS = frozenset({"abc", "typing", "enum", "collections", "builtins", "dataclasses"})
"""Modules whose classes call only dunder methods of derived classes."""
_UNREGISTERING_ROOTS = frozenset({"torch", *_PLAIN_ROOTS})
"""Packages whose classes do not register derived classes."""
_MAX_PARSED_BYTES = 4_000_000
"""Limit for the parsed sources. Beyond it, everything counts as live."""
_MAX_STEPS = 40
"""Limit for the steps from a name to its value. A longer chain is a cycle."""
_UNKNOWN = ""


class _Question(NamedTuple):
    """A function, a class, or a name that may be live.

    Attributes:
        module: Module of the function or class; empty for a name.
        name: Qualified name of the function or class, or the mentioned name.
        is_class: Whether the question is about a class.
        ignores_decorators: Whether a function's decorators do not count as calls.
    """

    module: str
    name: str
    is_class: bool = False
    ignores_decorators: bool = False


class _Answer(NamedTuple):
    """The conditions under which a question's subject is live.

    Attributes:
        is_live: Whether the subject is live unconditionally.
        all_of: Questions whose subjects must all be live.
        one_of: Questions of which at least one subject must be live, if there are any.
    """

    is_live: bool = False
    all_of: tuple[_Question, ...] = ()
    one_of: tuple[_Question, ...] = ()


class Reachability:
    """A reachability analysis for the functions of one package.

    Args:
        index: Sources of all interned modules.
        mocked: Mocked modules.
        read: Function that parses a module, with a cache.
        entry_names: Module and qualified name of each class and function that saved objects name.
            An empty name stands for the whole module.
    """

    def __init__(
        self,
        index: SourceIndex,
        mocked: Collection[str],
        read: Read,
        entry_names: Collection[tuple[str, str]],
    ) -> None:
        self._index = index
        self._read = read
        self._ancestry = _Ancestry(read, index.sources, mocked)
        self._entries = frozenset(entry_names)
        self._answers: dict[_Question, _Answer] = {}
        self._dependents: dict[_Question, list[_Question]] = defaultdict(list)
        self._live: set[_Question] = set()
        self._parsed: set[str] = set()
        self._parsed_bytes = 0

    def is_live(self, module: str, unit: str) -> bool:
        """Return whether anything can call a function; code outside of functions is always live."""
        table = self._read(module)
        if not unit or table is None or unit not in table.units:
            return True
        return self._prove_live(_Question(module, unit))

    def is_called_later(self, module: str, name: str) -> bool:
        """Return whether anything can call a function or class that a mock decorates or is base of.

        For a class, only saved objects count: calls in the package are uses of their own.

        Args:
            module: Module of the function or class.
            name: Qualified name of the function or class.
        """
        table = self._read(module)
        body = table.classes.get(name) if table is not None else None
        if body is not None:
            return self._is_entry(module, name) or body in self._entry_classes
        is_known = table is not None and name in table.units
        return is_known and self._prove_live(_Question(module, name, ignores_decorators=True))

    def _prove_live(self, root: _Question) -> bool:
        while root not in self._live:
            pending = self._unanswered(root)
            if not pending:
                return False
            for node in pending:
                if self._is_over_budget():
                    return True
                self._record_answer(node, self._answer(node))
        return True

    def _unanswered(self, root: _Question) -> list[_Question]:
        """Return the unanswered questions that a question depends on."""
        found, seen, pending = [], {root}, [root]
        while pending:
            node = pending.pop()
            answer = self._answers.get(node)
            if answer is None:
                found.append(node)
                continue
            for other in (*answer.all_of, *answer.one_of):
                if other not in seen and other not in self._live:
                    seen.add(other)
                    pending.append(other)
        return found

    def _record_answer(self, node: _Question, answer: _Answer) -> None:
        """Record an answer, and mark the subjects that it proves live."""
        self._answers[node] = answer
        for other in (*answer.all_of, *answer.one_of):
            self._dependents[other].append(node)
        updated = [node]
        while updated:
            node = updated.pop()
            if node not in self._live and self._is_proven(self._answers[node]):
                self._live.add(node)
                updated += self._dependents[node]

    def _is_proven(self, answer: _Answer) -> bool:
        if answer.is_live:
            return True
        if not (answer.all_of or answer.one_of) or not self._live.issuperset(answer.all_of):
            return False
        return not answer.one_of or not self._live.isdisjoint(answer.one_of)

    def _is_over_budget(self) -> bool:
        return self._parsed_bytes > _MAX_PARSED_BYTES

    def _answer(self, node: _Question) -> _Answer:
        if not node.module:
            return self._ask_name(node.name)
        table = self._read(node.module)
        if table is None:
            return _Answer(is_live=True)
        if node.is_class:
            return self._ask_class(node, table.classes[node.name])
        return self._ask_unit(node, table.units[node.name])

    def _ask_unit(self, node: _Question, unit: FunctionUnit) -> _Answer:
        body = unit.body
        is_callable_outside = (
            (unit.is_decorated and not node.ignores_decorators)  # a decorator may call it
            or (unit.name.startswith("__") and unit.name.endswith("__"))
            or self._is_entry(node.module, node.name)
        )
        if body is not None and not is_callable_outside:
            outside = self._ancestry.find(body).outside
            is_callable_outside = body in self._entry_classes or any(
                root_of(name) not in _PLAIN_ROOTS for name in outside
            )
        named = () if is_callable_outside else (_Question("", unit.name),)
        if body is None:
            return _Answer(is_live=is_callable_outside, one_of=named)
        return _Answer(all_of=(_Question(body.module, body.label, is_class=True),), one_of=named)

    def _ask_class(self, node: _Question, body: NameScope) -> _Answer:
        statement = body.definition
        ancestors = self._ancestry.find(body)
        is_callable_outside = (
            self._is_entry(node.module, node.name)
            or body in self._entry_classes
            or bool(statement is not None and (statement.decorator_list or statement.keywords))
            or any(root_of(name) not in _UNREGISTERING_ROOTS for name in ancestors.outside)
            or any("__init_subclass__" in base.bindings for base in ancestors.inside)
        )
        if is_callable_outside:
            return _Answer(is_live=True)
        return _Answer(one_of=(_Question("", node.name.rpartition(".")[2]),))

    def _ask_name(self, name: str) -> _Answer:
        """Return the functions that mention a name as alternatives."""
        modules = self._index.find_mentions(name)
        if modules is None or self._index.may_be_computed(name):
            return _Answer(is_live=True)
        units: list[_Question] = []
        for module in modules:
            table = self._read(module)
            if module not in self._parsed:
                self._parsed.add(module)
                self._parsed_bytes += len(self._index.sources[module][0])
            for unit in sorted(table.mentions.get(name, ())) if table is not None else ():
                node = _Question(module, unit)
                if not unit or node in self._live:
                    return _Answer(is_live=True)
                units.append(node)
            if self._is_over_budget():
                return _Answer(is_live=True)
        return _Answer(one_of=tuple(units))

    def _is_entry(self, module: str, qualname: str) -> bool:
        if (module, "") in self._entries:
            return True
        parts = qualname.split(".")
        beginnings = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        return any((module, beginning) in self._entries for beginning in beginnings)

    @cached_property
    def _entry_classes(self) -> frozenset[NameScope]:
        """Classes of saved objects, and their base classes."""
        found: set[NameScope] = set()
        for module, name in self._entries:
            table = self._read(module) if module in self._index.sources else None
            body = table.classes.get(name) if table is not None else None
            if body is not None:
                found.update((body, *self._ancestry.find(body).inside))
        return frozenset(found)


class _Ancestors(NamedTuple):
    """The base classes of a class, at any distance.

    Attributes:
        inside: Classes in the package.
        outside: Dotted names of other classes; empty for an unknown one. Mocked classes are left
            out, because they call nothing.
    """

    inside: tuple[NameScope, ...]
    outside: tuple[str, ...]


class _Ancestry:
    """A resolver for base classes by name.

    Unlike the search for uses, it reads any module that a name leads to, keeps names outside of the
    package, and uses only the first binding of a name.
    """

    def __init__(self, read: Read, interned: Collection[str], mocked: Collection[str]) -> None:
        self._read = read
        self._interned = interned
        self._mocked = mocked
        self._known: dict[NameScope, _Ancestors] = {}

    def find(self, body: NameScope) -> _Ancestors:
        """Return the ancestors of a class."""
        if body not in self._known:
            inside: dict[NameScope, None] = {}
            outside: dict[str, None] = {}
            pending = [body]
            while pending:
                for found in self._bases(pending.pop()):
                    if isinstance(found, str):
                        outside[found] = None
                    elif found not in inside and found is not body:
                        inside[found] = None
                        pending.append(found)
            names = (
                name
                for name in outside
                if not any(each in self._mocked for each in (name, *parents(name)))
            )
            self._known[body] = _Ancestors(tuple(inside), tuple(names))
        return self._known[body]

    def _bases(self, body: NameScope) -> Iterator[NameScope | str]:
        if body.definition is not None and body.parent is not None:
            for base in body.definition.bases:
                yield self._resolve(base, body.parent)

    def _resolve(self, node: ast.expr, scope: NameScope) -> NameScope | str:
        """Resolve an expression to a class of the package, or to another class's dotted name."""
        attributes: list[str] = []
        for _ in range(_MAX_STEPS):
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
            meaning = next(iter(binder.bindings.get(node.id, ())), None)
            if isinstance(meaning, DefinedClass):
                return meaning.body if not attributes else _UNKNOWN
            if isinstance(meaning, Imported):
                return self._resolve_import(_join(meaning.module, meaning.name, *attributes))
            if not isinstance(meaning, Assigned):
                return _UNKNOWN
            node, scope = meaning.value, meaning.scope
        return _UNKNOWN

    def _resolve_import(self, path: str) -> NameScope | str:
        """Resolve a dotted path through the modules of the package."""
        for _ in range(_MAX_STEPS):
            module = next((each for each in parents(path) if each in self._interned), None)
            if module is None:
                return path
            name, _, rest = path[len(module) + 1 :].partition(".")
            table = self._read(module)
            meanings = table.scope.bindings.get(name, ()) if table is not None else ()
            meaning = next(iter(meanings), None)
            if isinstance(meaning, DefinedClass):
                return meaning.body if not rest else _UNKNOWN
            if not isinstance(meaning, Imported):
                return self._find_in_star_imports(table, name) if not rest else _UNKNOWN
            path = _join(meaning.module, meaning.name, rest)
        return _UNKNOWN

    def _find_in_star_imports(self, table: ModuleTable | None, name: str) -> NameScope | str:
        """Resolve a name through star imports."""
        for star in table.scope.stars if table is not None else ():
            other = self._read(star) if star in self._interned else None
            for meaning in other.scope.bindings.get(name, ()) if other is not None else ():
                if isinstance(meaning, DefinedClass):
                    return meaning.body
        return _UNKNOWN


def _join(*names: str | None) -> str:
    return ".".join(filter(None, names))
