"""Whether anything in a package can call a function, judged by names.

A function is dead only if nothing that can run mentions its name. Whatever cannot be told counts
as a call: code outside the package, decorators, names that are put together at run time.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from typing import NamedTuple, TypeAlias

from modpack.core.names import parents, root_of
from modpack.discovery.mock_texts import Texts
from modpack.discovery.mock_usage_reader import (
    Assigned,
    DefinedClass,
    FunctionUnit,
    Imported,
    ModuleTable,
    NameScope,
)

Read: TypeAlias = Callable[[str], ModuleTable | None]
"""Gives the table of an interned module; None if it cannot be parsed."""

_PLAIN_HOMES = frozenset({"abc", "typing", "enum", "collections", "builtins", "dataclasses"})
"""Modules whose classes call no method of a derived class but those with names like __this__."""
_QUIET_ROOTS = frozenset({"torch", *_PLAIN_HOMES})
"""Packages whose classes keep no list of the classes that are derived from them."""
_MAX_PARSED = 4_000_000
"""How much text is parsed before everything else counts as live."""
_MAX_STEPS = 40
"""From a name to what it stands for: more would be a circle."""
_UNKNOWN = ""


class _Node(NamedTuple):
    """A question: is this live?

    Attributes:
        module: the module of a function or a class; empty for a name.
        name: its qualified name, or the name that something mentions.
        is_class: whether it is a class.
        is_made: whether it is a function without regard to its decorators.
    """

    module: str
    name: str
    is_class: bool = False
    is_made: bool = False


class _Answer(NamedTuple):
    """What decides a question.

    Attributes:
        is_live: the answer, if nothing else is needed.
        all_of: questions that must all be answered with yes ...
        one_of: ... and of these at least one, if there are any.
    """

    is_live: bool = False
    all_of: tuple[_Node, ...] = ()
    one_of: tuple[_Node, ...] = ()


class Reachability:
    """Answers for the functions of one package.

    Args:
        texts: all interned modules.
        mocked: the mocked modules.
        read: parses a module, once.
        entry_names: module and qualified name of what saved objects name; with an empty name, all
            of a module.
    """

    def __init__(
        self,
        texts: Texts,
        mocked: Collection[str],
        read: Read,
        entry_names: Collection[tuple[str, str]],
    ) -> None:
        self._texts = texts
        self._read = read
        self._ancestry = _Ancestry(read, texts.sources, mocked)
        self._entries = frozenset(entry_names)
        self._answers: dict[_Node, _Answer] = {}
        self._askers: dict[_Node, list[_Node]] = defaultdict(list)
        self._live: set[_Node] = set()
        self._parsed: set[str] = set()
        self._parsed_bytes = 0

    def is_live(self, module: str, unit: str) -> bool:
        """Whether anything can call a function; code that is in no function always runs."""
        table = self._read(module)
        if not unit or table is None or unit not in table.units:
            return True
        return self._is_so(_Node(module, unit))

    def is_called_later(self, module: str, name: str) -> bool:
        """Whether anything can call what a mock decorates, or what derives from a mocked class.

        Args:
            module: where it is.
            name: its qualified name. Calls of a class that the package itself makes are uses of
                their own: only saved objects matter here.
        """
        table = self._read(module)
        body = table.classes.get(name) if table is not None else None
        if body is not None:
            return self._is_entry(module, name) or body in self._classes_of_entries
        is_known = table is not None and name in table.units
        return is_known and self._is_so(_Node(module, name, is_made=True))

    def _is_so(self, root: _Node) -> bool:
        while root not in self._live:
            waiting = self._open_questions(root)
            if not waiting:
                return False
            for node in waiting:
                if self._is_too_much():
                    return True
                self._conclude(node, self._answer(node))
        return True

    def _open_questions(self, root: _Node) -> list[_Node]:
        """The questions behind one that were not asked yet; none of them matters if it is empty."""
        found, seen, waiting = [], {root}, [root]
        while waiting:
            node = waiting.pop()
            answer = self._answers.get(node)
            if answer is None:
                found.append(node)
                continue
            for other in (*answer.all_of, *answer.one_of):
                if other not in seen and other not in self._live:
                    seen.add(other)
                    waiting.append(other)
        return found

    def _conclude(self, node: _Node, answer: _Answer) -> None:
        """Mark as live what follows from one more answer, and nothing else."""
        self._answers[node] = answer
        for other in (*answer.all_of, *answer.one_of):
            self._askers[other].append(node)
        news = [node]
        while news:
            node = news.pop()
            if node not in self._live and self._follows(self._answers[node]):
                self._live.add(node)
                news += self._askers[node]

    def _follows(self, answer: _Answer) -> bool:
        if answer.is_live:
            return True
        if not (answer.all_of or answer.one_of) or not self._live.issuperset(answer.all_of):
            return False
        return not answer.one_of or not self._live.isdisjoint(answer.one_of)

    def _is_too_much(self) -> bool:
        return self._parsed_bytes > _MAX_PARSED

    # -- single questions --------------------------------------------------------------------

    def _answer(self, node: _Node) -> _Answer:
        if not node.module:
            return self._of_name(node.name)
        table = self._read(node.module)
        if table is None:
            return _Answer(is_live=True)
        if node.is_class:
            return self._of_class(node, table.classes[node.name])
        return self._of_unit(node, table.units[node.name])

    def _of_unit(self, node: _Node, unit: FunctionUnit) -> _Answer:
        body = unit.body
        is_known_outside = (
            (unit.is_decorated and not node.is_made)  # by what may call it, or have it called
            or (unit.name.startswith("__") and unit.name.endswith("__"))
            or self._is_entry(node.module, node.name)
        )
        if body is not None and not is_known_outside:
            outside = self._ancestry.of(body).outside
            is_known_outside = body in self._classes_of_entries or any(
                root_of(name) not in _PLAIN_HOMES for name in outside
            )
        named = () if is_known_outside else (_Node("", unit.name),)
        if body is None:
            return _Answer(is_live=is_known_outside, one_of=named)
        return _Answer(all_of=(_Node(body.module, body.label, is_class=True),), one_of=named)

    def _of_class(self, node: _Node, body: NameScope) -> _Answer:
        statement = body.definition
        ancestors = self._ancestry.of(body)
        is_known_outside = (
            self._is_entry(node.module, node.name)
            or body in self._classes_of_entries
            or bool(statement is not None and (statement.decorator_list or statement.keywords))
            or any(root_of(name) not in _QUIET_ROOTS for name in ancestors.outside)
            or any("__init_subclass__" in base.bindings for base in ancestors.inside)
        )
        if is_known_outside:
            return _Answer(is_live=True)
        return _Answer(one_of=(_Node("", node.name.rpartition(".")[2]),))

    def _of_name(self, name: str) -> _Answer:
        """What code mentions a name."""
        modules = self._texts.mentioning(name)
        if modules is None or self._texts.may_be_computed(name):
            return _Answer(is_live=True)
        units: list[_Node] = []
        for module in modules:
            table = self._read(module)
            if module not in self._parsed:
                self._parsed.add(module)
                self._parsed_bytes += len(self._texts.sources[module][0])
            for unit in sorted(table.mentions.get(name, ())) if table is not None else ():
                node = _Node(module, unit)
                if not unit or node in self._live:
                    return _Answer(is_live=True)
                units.append(node)
            if self._is_too_much():
                return _Answer(is_live=True)
        return _Answer(one_of=tuple(units))

    # -- what saved objects name -------------------------------------------------------------

    def _is_entry(self, module: str, qualname: str) -> bool:
        if (module, "") in self._entries:
            return True
        parts = qualname.split(".")
        beginnings = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        return any((module, beginning) in self._entries for beginning in beginnings)

    @cached_property
    def _classes_of_entries(self) -> frozenset[NameScope]:
        """The classes of saved objects, and those that they derive from."""
        found: set[NameScope] = set()
        for module, name in self._entries:
            table = self._read(module) if module in self._texts.sources else None
            body = table.classes.get(name) if table is not None else None
            if body is not None:
                found.update((body, *self._ancestry.of(body).inside))
        return frozenset(found)


class _Ancestors(NamedTuple):
    """All ancestors of a class, as far as they are known.

    Attributes:
        inside: those in the package.
        outside: dotted names of the others; empty text for one that is not known. Mocked classes
            are left out: nothing comes from them.
    """

    inside: tuple[NameScope, ...]
    outside: tuple[str, ...]


class _Ancestry:
    """What classes derive from: follows the names of base classes.

    Unlike the search for uses, this reads any module that a name leads to, keeps the names of
    modules that are not in the package, and takes the first meaning of a name for its only one.
    """

    def __init__(self, read: Read, interned: Collection[str], mocked: Collection[str]) -> None:
        self._read = read
        self._interned = interned
        self._mocked = mocked
        self._known: dict[NameScope, _Ancestors] = {}

    def of(self, body: NameScope) -> _Ancestors:
        """The ancestors of a class."""
        if body not in self._known:
            inside: dict[NameScope, None] = {}
            outside: dict[str, None] = {}
            waiting = [body]
            while waiting:
                for found in self._bases(waiting.pop()):
                    if isinstance(found, str):
                        outside[found] = None
                    elif found not in inside and found is not body:
                        inside[found] = None
                        waiting.append(found)
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
                yield self._resolved(base, body.parent)

    def _resolved(self, node: ast.expr, scope: NameScope) -> NameScope | str:
        """A class of the package, or the dotted name of another."""
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
                return self._imported(_joined(meaning.module, meaning.name, *attributes))
            if not isinstance(meaning, Assigned):
                return _UNKNOWN
            node, scope = meaning.value, meaning.scope
        return _UNKNOWN

    def _imported(self, path: str) -> NameScope | str:
        """What a dotted path leads to, through as many modules of the package as it takes."""
        for _ in range(_MAX_STEPS):
            home = next((each for each in parents(path) if each in self._interned), None)
            if home is None:
                return path
            name, _, rest = path[len(home) + 1 :].partition(".")
            table = self._read(home)
            meanings = table.scope.bindings.get(name, ()) if table is not None else ()
            meaning = next(iter(meanings), None)
            if isinstance(meaning, DefinedClass):
                return meaning.body if not rest else _UNKNOWN
            if not isinstance(meaning, Imported):
                return self._from_stars(table, name) if not rest else _UNKNOWN
            path = _joined(meaning.module, meaning.name, rest)
        return _UNKNOWN

    def _from_stars(self, table: ModuleTable | None, name: str) -> NameScope | str:
        """What a name is that only a star import can have bound."""
        for star in table.scope.stars if table is not None else ():
            other = self._read(star) if star in self._interned else None
            for meaning in other.scope.bindings.get(name, ()) if other is not None else ():
                if isinstance(meaning, DefinedClass):
                    return meaning.body
        return _UNKNOWN


def _joined(*names: str | None) -> str:
    return ".".join(filter(None, names))
