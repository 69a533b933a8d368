"""Where a live module deviates from its source, found without running anything.

Functions are known by where they are: a function of a module has the module's globals, its file and
its qualified name, whatever compiled it. So nothing is compiled here, and what a library for tests
or for coverage does to code is no deviation. Values are compared where the source spells them.
"""

from __future__ import annotations

import abc
import argparse
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, SimpleNamespace
from typing import Any, Final, NamedTuple

from modpack.core.names import root_of
from modpack.core.scan import Body, Definitions, Initializer, Literal, Rebinding, Row
from modpack.discovery.finder import is_a
from modpack.discovery.importers import module_dict
from modpack.exporting.live_code import functions_in, home_of, is_plain, resolved

_MISSING: Final = object()
_UNKNOWN: Final = object()
_LONGEST = 40
_MADE_BY: Final = "__dataclass_fields__"
_PLAIN_METACLASSES: Final = (type, abc.ABCMeta)
_AROUND: tuple[tuple[type, str], ...] = (
    (partial, "func"),
    (property, "fget"),
    (staticmethod, "__func__"),
    (classmethod, "__func__"),
    (MethodType, "__func__"),
)
"""Python's own objects around a function, and the attribute that has it."""


def shown(value: Any) -> str:
    """A value in a few words. Never a text: it may be a password.

    >>> shown(4), shown("secret"), shown((1, "a")), shown(len)
    ('4', 'another text', 'another tuple', "the built-in function 'len'")
    """
    if is_a(value, (str, bytes)):
        return "another text"
    if type(value) is tuple:
        return "another tuple"
    if is_plain(value):
        return repr(value) if len(repr(value)) <= _LONGEST else f"another {type(value).__name__}"
    if is_a(value, FunctionType):
        return _function(value)
    if is_a(value, BuiltinFunctionType):
        return f"the built-in function {value.__name__!r}"
    if is_a(value, type):
        return f"the class {value.__module__}.{value.__qualname__}"
    bare: Any = None
    for kind, name in _AROUND:
        if is_a(value, kind):
            bare = getattr(value, name)
    if is_a(bare, FunctionType):
        return f"a {type(value).__name__} of {_function(bare)}"
    return f"an object of {type(value).__module__}.{type(value).__qualname__}"


def _function(function: FunctionType) -> str:
    code = function.__code__
    place = f"{PurePath(code.co_filename).name}:{code.co_firstlineno}"
    # A wrapper calls itself what it wraps; its code does not (since Python 3.11).
    name = getattr(code, "co_qualname", code.co_name)
    return f"{function.__globals__.get('__name__')}.{name} ({place})"


def _object_deviations(
    value: Any,
    live: Mapping[str, Any],
    call: Sequence[Literal],
    named: Mapping[str, Literal],
    inits: Mapping[str, Definitions],
) -> Iterator[tuple[str, str, bool]]:
    """The attributes of an object that the call that made it does not give.

    Args:
        value: the object that a name stands for.
        live: what its module holds.
        call: the dotted name of what its statement calls, and the arguments.
        named: the arguments with names.
        inits: what the sources of the package define, by module.

    Yields:
        The attribute, a clause that says what it is, and whether its own methods set it so.
    """
    kind = resolved(str(call[0]), live)
    if not is_a(kind, type) or type(value) is not kind:
        return
    made = _made(kind, call[1:], named, inits)
    if made is None:
        return
    expected, changed = made
    found = module_dict(value)
    for name, before in expected.items():
        now = found.get(name, _UNKNOWN)  # unknown in a class with slots, for one
        if before is not _UNKNOWN and now is not _UNKNOWN and not _keeps(before, now):
            there = f" and not {shown(before)}" if is_plain(now) else ""
            yield name, f"is {shown(now)}{there}", changed.get(name) == Rebinding.RUNNING
    for name in (each for each in found if each not in expected):
        if changed.get(name, Rebinding.ON_REQUEST) == Rebinding.ON_REQUEST:
            yield name, f"was set to {shown(found[name])}", False


def _made(
    kind: type,
    given: Sequence[Literal],
    named: Mapping[str, Literal],
    inits: Mapping[str, Definitions],
) -> tuple[dict[str, Any], dict[str, int]] | None:
    """The attributes that a call gives, and those that methods change."""
    if kind in (SimpleNamespace, argparse.Namespace):
        return None if given else ({n: _value(v) for n, v in named.items()}, {})
    expected: dict[str, Any] | None = None
    changed: dict[str, int] = {}
    for each in kind.__mro__[:-1]:
        defined = inits.get(each.__module__, Definitions())
        found = defined.initializers.get(each.__qualname__)
        if found is None:
            return None
        changed = {**found.changed, **changed}
        if expected is not None:
            continue
        body = defined.bodies.get(each.__qualname__)
        if body is not None and "__init__" in body.functions:
            expected = _of_parameters(found, given, named)
        elif _MADE_BY in vars(each):
            expected = _of_dataclass(each, given, named)
        else:
            continue
        if expected is None:
            return None
    return expected or {}, changed


def _of_parameters(
    found: Initializer, given: Sequence[Literal], named: Mapping[str, Literal]
) -> dict[str, Any] | None:
    names = [name for name, _ in found.parameters]
    if len(given) > len(names) or not named.keys() <= set(names):
        return None
    arguments = {**dict(found.parameters), **dict(zip(names, given, strict=False)), **named}
    return {
        name: _value(arguments[parameter] if parameter else literal)
        for name, (parameter, literal) in found.attributes.items()
    }


def _of_dataclass(
    kind: type, given: Sequence[Literal], named: Mapping[str, Literal]
) -> dict[str, Any] | None:
    fields = [f for f in vars(kind)[_MADE_BY].values() if isinstance(f, dataclasses.Field)]
    fields = [f for f in fields if f._field_type is dataclasses._FIELD]  # type: ignore[attr-defined]
    names = [field.name for field in fields if field.init and not field.kw_only]
    if len(given) > len(names):
        return None
    arguments = {**dict(zip(names, given, strict=False)), **named}
    made = {f.name: f.default if is_plain(f.default) else _UNKNOWN for f in fields}
    return made | {name: _value(arguments[name]) for name in made if name in arguments}


def _value(literal: Literal) -> Any:
    """The value of a row's literal; unknown if that can change."""
    made = _evaluated(literal)
    return made if is_plain(made) else _UNKNOWN


def _evaluated(literal: Literal) -> Any:
    """The value of a literal, which in a list is the text of one, or nothing that is known."""
    if not isinstance(literal, list):
        return literal
    import ast  # seldom needed

    return ast.literal_eval(literal[0]) if literal else _UNKNOWN


def _keeps(first: Any, value: Any) -> bool:
    """Whether a container has all that its display gave it, which code may have added to.

    Other values are to be what they were.
    """
    if first in ({}, []):
        return type(value) in (dict, list)
    if type(value) is not type(first):
        return False
    if isinstance(first, tuple):
        return len(first) == len(value) and all(map(_keeps, first, value))
    if isinstance(first, dict):
        return all(key in value and _keeps(first[key], value[key]) for key in first)
    if isinstance(first, list):
        return len(value) >= len(first) and all(map(_keeps, first, value))
    if isinstance(first, set):
        return bool(first <= value)
    return is_plain(value) and repr(first) == repr(value)


class SourceMismatch(NamedTuple):
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


@dataclass
class LiveModule:
    """A module that runs here, beside what its source defines.

    Attributes:
        live: what it holds.
        defined: what its source defines.
        file: what its functions call their file; None if its loader may have rewritten them.
        inits: finds what a source says of a class of the package, by module.
        is_plain: whether it is a module of Python's own class, which keeps all its names.
    """

    live: Mapping[str, Any]
    defined: Definitions
    file: str | None
    inits: Mapping[str, Definitions]
    is_plain: bool

    def deviations(self) -> Iterator[SourceMismatch]:
        """All names that stand for something else than the source says."""
        for path, body in self.defined.bodies.items():
            outside, _, name = path.rpartition(".")
            if not path:
                yield from self._of_body(_Owner(self.live, is_complete=self.is_plain), body)
            # An import, or other statement, may have bound the name of a class as well.
            elif "*" not in body.unread and name not in self.defined.bodies[outside].unread:
                kind = self._class_at(path)
                if kind is not None:
                    owner = _class_owner(path, kind, body, self.live)
                    yield from self._of_body(owner, body)
                    if not owner.is_special:
                        yield from self._extras(owner, body)

    def _class_at(self, path: str) -> type | None:
        found: Any = self.live.get(path.partition(".")[0])
        for name in path.split(".")[1:]:
            found = vars(found).get(name) if is_a(found, type) else None
        return found if is_a(found, type) and self._is_class(found, path) else None

    def _of_body(self, owner: _Owner, body: Body) -> Iterator[SourceMismatch]:
        def is_certain(name: str) -> bool:
            """Whether the body binds a name in any case, and what it makes keeps that."""
            return owner.is_complete and name not in body.conditional

        plain: list[tuple[str, int, Any]]
        plain = [(name, line, _MISSING) for name, line in body.functions.items()]
        if owner.has_data:
            plain += [(name, line, literal) for name, (line, literal) in body.values.items()]
        for name, line, literal in plain:
            value = owner.names.get(name, _MISSING)
            if value is _MISSING and not is_certain(name):
                continue
            if literal is _MISSING:
                is_kept = self._is_made_of(value, name, owner)
            else:
                is_kept = self._gives(literal, value, owner)
            if not is_kept:
                yield owner.deviation(name, value, line, literal)
        for name, rows in body.others.items():
            if name in owner.names or is_certain(name):
                yield from self._of_rows(owner, name, rows)

    def _of_rows(self, owner: _Owner, name: str, rows: Sequence[Row]) -> Iterator[SourceMismatch]:
        """Deviations of a name that is bound in several ways, or in one that is not plain."""
        value = owner.names.get(name, _MISSING)
        line, kind, given, named = rows[-1]
        if kind == "call" and len(rows) == 1:
            found = _object_deviations(value, self.live, given, named, self.inits)
            for attribute, what, is_own in found:
                yield SourceMismatch(f"{owner.prefix}{name}.{attribute}", what, line, True, is_own)
            return
        if any(self._fits(row, value, name, owner) for row in rows):
            return
        if kind == "holds" and is_a(value, (dict, list, set)):
            yield SourceMismatch(owner.prefix + name, "has other items", line, bool(owner.prefix))
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
            return not owner.has_data or given[0] == [] or _keeps(_evaluated(given[0]), value)
        return True

    def _is_class(self, value: Any, path: str) -> bool:
        if not is_a(value, type):
            return value is not _MISSING and not is_a(value, FunctionType)
        home, here = home_of(value), str(self.live.get("__name__"))
        # Libraries give classes the name of the module that users know them by.
        return value.__qualname__ == path and root_of(home) == root_of(here)

    def _is_decorated(
        self, value: Any, name: Literal, decorators: Sequence[Literal], owner: _Owner
    ) -> bool:
        """Whether decorators may have made a value of a function."""
        found = list(functions_in(value))
        if value is not _MISSING and not found:
            return True
        if any(each.__globals__ is self.live and each.__code__.co_name == name for each in found):
            return True
        makers = {root_of(home_of(resolved(str(each), self.live))) for each in decorators}
        return any(root_of(home_of(each)) in makers for each in found)

    def _is_made_of(self, value: Any, name: str, owner: _Owner) -> bool:
        """Whether a value is what Python, a metaclass or a base makes of a plain function."""
        bare = value.__func__ if is_a(value, (staticmethod, classmethod)) else value
        if is_a(bare, FunctionType) and self._is_own(bare, owner, name):
            return True
        found = list(functions_in(bare))
        holds_own = any(self._is_own(each, owner, name) for each in found)
        if owner.is_special or self.file is None:
            return holds_own or not found or home_of(found[0]) in owner.makers
        return holds_own and home_of(found[0]) in owner.makers

    def _is_own(self, function: FunctionType, owner: _Owner, name: str) -> bool:
        """Whether a function is the one that the source defines; its name may be mangled."""
        code = function.__code__
        if function.__globals__ is not self.live or not name.endswith(code.co_name):
            return False
        is_here = self.file is None or code.co_filename == self.file
        return is_here and function.__qualname__ == owner.prefix + code.co_name

    def _gives(self, literal: Literal, value: Any, owner: _Owner) -> bool:
        """Whether a literal gives a value, or something took its place when a class was made."""
        if literal == [] or _keeps(_evaluated(literal), value):
            return True
        return owner.is_special and not is_plain(value)

    def _extras(self, owner: _Owner, body: Body) -> Iterator[SourceMismatch]:
        """Attributes of a plain class that its statement does not give it."""
        for name, value in owner.names.items():
            if any(
                name in each for each in (body.functions, body.values, body.others, body.unread)
            ):
                continue
            is_function = type(value) is FunctionType
            if is_function:
                is_made = value.__code__.co_filename.startswith("<") or name[:10] == "__annotate"
                if is_made or (value.__globals__ is self.live and not owner.prefix):
                    continue
            if is_function or (is_plain(value) and not name.startswith("__")):
                yield owner.told(name, f"was set to {shown(value)}", body.line, value)


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

    def deviation(
        self, name: str, value: Any, line: int, literal: Literal | object = _MISSING
    ) -> SourceMismatch:
        what = "was deleted" if value is _MISSING else f"is {shown(value)}"
        is_told = is_plain(literal) and is_plain(value) and not isinstance(literal, str)
        before = f" and not {shown(literal)}" if is_told else ""
        return self.told(name, what + before, line, value)

    def told(self, name: str, what: str, line: int, value: Any) -> SourceMismatch:
        found = next(functions_in(value), None)
        home, here = home_of(found), self.names.get("__module__" if self.prefix else "__name__")
        is_own = found is not None and "<locals>" in found.__qualname__ and home == str(here)
        return SourceMismatch(self.prefix + name, what, line, bool(self.prefix), is_own, home)


def _class_owner(path: str, kind: type, body: Body, live: Mapping[str, Any]) -> _Owner:
    meta = type(kind)
    bases = kind.__mro__[1:-1]
    makes_subclasses = any("__init_subclass__" in vars(base) for base in bases)
    is_special = bool(
        meta not in _PLAIN_METACLASSES or body.decorators or makes_subclasses or _is_row(kind)
    )
    makers = {home_of(base) for base in (*type.mro(meta)[:-1], *bases)}
    makers.update(home_of(resolved(each, live)) for each in body.decorators)
    if not is_special:
        makers.discard(kind.__module__)
    has_data = meta in _PLAIN_METACLASSES and not _is_row(kind)
    return _Owner(vars(kind), f"{path}.", frozenset(makers), is_special, has_data, not is_special)


def _is_row(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")
