"""In what a live module deviates from what its source defines, without running anything.

Functions are known by where they are: a function of a module has the module's globals, its file and
its qualified name, whatever compiled it. So nothing is compiled here, and what a library for tests
or for coverage does to code is no deviation. Values are compared where the source spells them.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final, NamedTuple

from modpack.core.defined import Body, Defined, Literal, Row
from modpack.core.names import root_of
from modpack.packing.liveobjects import object_deviations
from modpack.packing.livewords import is_plain, shown
from modpack.packing.scriptproof import functions_in
from modpack.resolution.live import contents_of, is_a

__all__ = ["Deviation", "LiveModule"]

_MISSING: Final = object()
_EMPTY: Final = ("{}", "[]")
_PLAIN_METACLASSES: Final = (type, abc.ABCMeta)


@dataclass(frozen=True)
class Deviation:
    """One name that stands for something else than its source says.

    Attributes:
        path: the name, dotted: ``Net.forward``.
        what: a clause that says what it is now.
        line: where the source defines it, 1-based.
        is_attribute: whether it is one of a class or an object, and no name of the module.
        is_own: whether code of the module or the object itself made it so, as far as it shows.
        home: the module of the function that it is now; empty for anything else.
    """

    path: str
    what: str
    line: int
    is_attribute: bool = False
    is_own: bool = False
    home: str = ""


class LiveModule:
    """A module that runs here, beside what its source defines.

    Args:
        live: what it holds.
        defined: what its source defines.
        file: what its functions call their file; None if its loader may have rewritten them.
        inits: finds what a source says of a class of the package, by module.
        is_plain: whether it is a module of Python's own class, which keeps all its names.
    """

    def __init__(
        self,
        live: Mapping[str, Any],
        defined: Defined,
        file: str | None,
        inits: Mapping[str, Defined],
        is_plain: bool = True,
    ) -> None:
        self._is_plain = is_plain
        self._live = live
        self._defined = defined
        self._file = file
        self._inits = inits

    def deviations(self) -> Iterator[Deviation]:
        """All names that stand for something else than the source says."""
        for path, body in self._defined.bodies.items():
            if not path:
                yield from self._of_body(_Owner(self._live, is_complete=self._is_plain), body)
            elif "*" not in body.unread and self._is_bound_once(path):
                kind = self._class_at(path)
                if kind is not None:
                    owner = _class_owner(path, kind, body, self._live)
                    yield from self._of_body(owner, body)
                    if owner.is_plain:
                        yield from self._extras(owner, body)

    def _is_bound_once(self, path: str) -> bool:
        """Whether no import, or other statement, may have bound the name of a class as well."""
        outside, _, name = path.rpartition(".")
        return name not in self._defined.bodies[outside].unread

    def _class_at(self, path: str) -> type | None:
        found: Any = self._live.get(path.partition(".")[0])
        for name in path.split(".")[1:]:
            found = vars(found).get(name) if is_a(found, type) else None
        if not is_a(found, type):
            return None
        return found if self._is_class(found, path) else None

    def _of_body(self, owner: _Owner, body: Body) -> Iterator[Deviation]:
        names, live, file, prefix = owner.names, self._live, self._file, owner.prefix
        for name, line in body.functions.items():
            value = names.get(name, _MISSING)
            if (
                type(value) is FunctionType
                and value.__globals__ is live
                and value.__qualname__ == prefix + name
                and value.__code__.co_name == name
                and (file is None or value.__code__.co_filename == file)
            ):
                continue
            if value is _MISSING and (name in body.conditional or not owner.is_complete):
                continue
            if not self._is_made_of(value, name, owner):
                yield owner.deviation(name, value, line)
        if owner.has_data:
            for name, (line, literal) in body.values.items():
                value = names.get(name, _MISSING)
                if value is literal or (type(value) is type(literal) and value == literal):
                    continue
                if value is _MISSING and (name in body.conditional or not owner.is_complete):
                    continue
                if not self._gives(literal, value, owner):
                    yield owner.deviation(name, value, line, literal)
        for name, rows in body.others.items():
            if name in names or (owner.is_complete and name not in body.conditional):
                yield from self._of_rows(owner, name, rows)

    def _of_rows(self, owner: _Owner, name: str, rows: Sequence[Row]) -> Iterator[Deviation]:
        """What deviates of a name that is bound in several ways, or in one that is not plain."""
        value = owner.names.get(name, _MISSING)
        line, kind, given, named = rows[-1]
        if kind == "call" and len(rows) == 1:
            path = owner.prefix + name
            for attribute, what, is_own in object_deviations(
                value, self._live, given, named, self._inits
            ):
                yield Deviation(f"{path}.{attribute}", what, line, True, is_own)
            return
        if any(self._fits(row, value, name, owner) for row in rows):
            return
        if kind == "holds" and is_a(value, (dict, list, set)):
            what = "has other items"
            yield Deviation(owner.prefix + name, what, line, bool(owner.prefix))
        else:
            yield owner.deviation(name, value, line, given[0] if kind == "is" else _MISSING)

    def _fits(self, row: Row, value: Any, name: str, owner: _Owner) -> bool:
        """Whether a statement may have bound a name to what it stands for."""
        _, kind, given, named = row
        if kind == "def":
            return self._is_decorated(value, named[""], given, owner)
        if kind == "class":
            return bool(given) or self._is_class(value, owner.prefix + name)
        if kind == "is":
            return not owner.has_data or self._gives(given[0], value, owner)
        if kind == "holds":
            return not owner.has_data or _still_holds(given[0], value)
        return True

    def _is_class(self, value: Any, path: str) -> bool:
        if not is_a(value, type):
            return value is not _MISSING and not is_a(value, FunctionType)
        home, here = _home(value), str(self._live.get("__name__"))
        # Libraries give classes the name of the module that users know them by.
        return value.__qualname__ == path and root_of(home) == root_of(here)

    def _is_decorated(
        self, value: Any, name: Literal, decorators: Sequence[Literal], owner: _Owner
    ) -> bool:
        """Whether decorators may have made a value of a function."""
        bare = _function_of(value)
        if bare is not None and bare.__globals__ is self._live and bare.__code__.co_name == name:
            return True
        found = list(functions_in(value))
        if value is not _MISSING and not found:
            return True
        if any(each.__globals__ is self._live and each.__code__.co_name == name for each in found):
            return True
        makers = {root_of(_home(_resolved(str(each), self._live))) for each in decorators}
        return any(root_of(_home(each)) in makers for each in found)

    def _is_made_of(self, value: Any, name: str, owner: _Owner) -> bool:
        """Whether a value is what Python, a metaclass or a base makes of a plain function."""
        bare = value.__func__ if is_a(value, (staticmethod, classmethod)) else value
        found = list(functions_in(bare))
        if found and found[0] is bare and self._is_own(found[0], owner, name):
            return True
        holds_own = any(self._is_own(each, owner, name) for each in found)
        if owner.is_special or self._file is None:
            return holds_own or not found or _home(found[0]) in owner.makers
        return holds_own and _home(found[0]) in owner.makers

    def _is_own(self, function: FunctionType, owner: _Owner, name: str) -> bool:
        """Whether a function is the one that the source defines; its name may be mangled."""
        code = function.__code__
        if function.__globals__ is not self._live or not name.endswith(code.co_name):
            return False
        is_here = self._file is None or code.co_filename == self._file
        return is_here and function.__qualname__ == owner.prefix + code.co_name

    def _gives(self, literal: Literal, value: Any, owner: _Owner) -> bool:
        """Whether a literal gives a value, or something took its place when a class was made."""
        if literal == []:
            return True
        if isinstance(literal, list):
            if _still_holds(literal, value):
                return True
        elif type(value) is type(literal) and value == literal:
            return True
        return not owner.is_plain and not is_plain(value)

    def _extras(self, owner: _Owner, body: Body) -> Iterator[Deviation]:
        """What a plain class has although its statement does not give it that."""
        for name, value in owner.names.items():
            if name in body.functions or name in body.values or name in body.others:
                continue
            if name in body.unread:
                continue
            is_function = type(value) is FunctionType
            if is_function and value.__globals__ is self._live and not owner.prefix:
                continue
            if is_function or (is_plain(value) and not name.startswith("__")):
                if is_function and value.__code__.co_filename.startswith("<"):
                    continue
                if is_function and name.startswith("__annotate"):
                    continue
                yield _deviation(owner, name, f"was set to {shown(value)}", body.line, value)


class _Owner(NamedTuple):
    """A module or a class, and what may have changed what its body gave it.

    Attributes:
        names: what it holds.
        prefix: what stands before its names in qualified names.
        makers: the modules whose code takes part in making it.
        is_special: whether decorators, a metaclass or ``__init_subclass__`` take part.
        has_data: whether it keeps the values that its body gives to names.
        is_complete: whether it keeps all names that its body binds.
    """

    names: Mapping[str, Any]
    prefix: str = ""
    makers: frozenset[str] = frozenset()
    is_special: bool = False
    has_data: bool = True
    is_complete: bool = True

    @property
    def is_plain(self) -> bool:
        return not self.is_special

    @property
    def home(self) -> str:
        return str(self.names.get("__module__" if self.prefix else "__name__"))

    def deviation(
        self, name: str, value: Any, line: int, literal: Literal | object = _MISSING
    ) -> Deviation:
        what = "was deleted" if value is _MISSING else f"is {shown(value)}"
        is_told = is_plain(literal) and is_plain(value) and not isinstance(literal, str)
        before = f" and not {shown(literal)}" if is_told else ""
        return _deviation(self, name, what + before, line, value)


def _deviation(owner: _Owner, name: str, what: str, line: int, value: Any) -> Deviation:
    found = next(functions_in(value), None)
    home = _home(found)
    is_own = found is not None and "<locals>" in found.__qualname__ and home == owner.home
    return Deviation(owner.prefix + name, what, line, bool(owner.prefix), is_own, home)


def _class_owner(path: str, kind: type, body: Body, live: Mapping[str, Any]) -> _Owner:
    meta = type(kind)
    bases = kind.__mro__[1:-1]
    makes_subclasses = any("__init_subclass__" in vars(base) for base in bases)
    is_special = bool(
        meta not in _PLAIN_METACLASSES or body.decorators or makes_subclasses or _is_row(kind)
    )
    makers = {_home(base) for base in (*type.mro(meta)[:-1], *bases)}
    makers.update(_home(_resolved(each, live)) for each in body.decorators)
    if not is_special:
        makers.discard(kind.__module__)
    has_data = meta in _PLAIN_METACLASSES and not _is_row(kind)
    return _Owner(vars(kind), f"{path}.", frozenset(makers), is_special, has_data, not is_special)


def _is_row(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _function_of(value: Any) -> FunctionType | None:
    """The function that Python's own decorators keep, without a search."""
    if is_a(value, property):
        value = value.fget
    elif is_a(value, (staticmethod, classmethod)):
        value = value.__func__
    return value if type(value) is FunctionType else None


def _home(value: Any) -> str:
    """The module whose code something is; empty if nobody knows."""
    if is_a(value, FunctionType):
        return str(value.__globals__.get("__name__", ""))
    found = getattr(value, "__module__", None) if is_a(value, type) else None
    return found if isinstance(found, str) else ""


def _resolved(name: str, live: Mapping[str, Any]) -> Any:
    """What a dotted name stands for, looked up in modules and classes only."""
    first, *others = name.split(".")
    found: Any = live.get(first)
    for part in others:
        found = contents_of(found).get(part)
    return found


def _still_holds(literal: Literal, value: Any) -> bool:
    """Whether a container has all that its display gave it; code may have added to it."""
    import ast

    if not isinstance(literal, list) or not literal:
        return True
    if literal[0] in _EMPTY:
        return type(value) in (dict, list)
    if _is_plain_tree(value) and repr(value) == literal[0]:
        return True
    first = ast.literal_eval(literal[0])
    if type(value) is not type(first):
        return False
    if isinstance(first, tuple):
        return _same(first, value)
    if isinstance(first, dict):
        kept = (_same(first[key], value[key]) for key in first if key in value)
        return all(key in value for key in first) and all(kept)
    if isinstance(first, list):
        return len(value) >= len(first) and all(map(_same, first, value))
    return first <= value if isinstance(first, set) else _same(first, value)


def _is_plain_tree(value: Any) -> bool:
    """Whether a value is made of plain ones only, so that its text can be had."""
    kind = type(value)
    if kind is dict:
        return all(map(is_plain, value)) and all(map(_is_plain_tree, value.values()))
    return all(map(_is_plain_tree, value)) if kind in (list, set, tuple) else is_plain(value)


def _same(one: Any, other: Any) -> bool:
    """Whether a plain value, or a container of such, is what it was."""
    if type(one) is tuple:
        return type(other) is tuple and len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, (dict, list, set)):
        return _still_holds([repr(one)], other)
    return is_plain(other) and type(one) is type(other) and repr(one) == repr(other)
