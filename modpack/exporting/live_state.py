"""Differences between a live module and its source, found without executing anything.

A function is identified by its module's globals, its file, and its qualified name, whatever
compiled it. Nothing is compiled here, so changes that test or coverage tools make to code don't
count as differences. Values are compared if the source spells them as literals.
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
from modpack.exporting.live_code import defining_module, is_constant, resolve_name, unwrap_functions

_MISSING: Final = object()
_UNKNOWN: Final = object()
_MAX_REPR_LENGTH = 40
_DATACLASS_FIELDS: Final = "__dataclass_fields__"
_PLAIN_METACLASSES: Final = (type, abc.ABCMeta)
_WRAPPERS: tuple[tuple[type, str], ...] = (
    (partial, "func"),
    (property, "fget"),
    (staticmethod, "__func__"),
    (classmethod, "__func__"),
    (MethodType, "__func__"),
)
"""Python's own wrappers of functions, and the attribute with the function."""


def describe_value(value: Any) -> str:
    """Describe a value in a few words. Texts are never shown, because they may be passwords.

    >>> describe_value(4), describe_value("secret"), describe_value((1, "a")), describe_value(len)
    ('4', 'another text', 'another tuple', "the built-in function 'len'")
    """
    if is_a(value, (str, bytes)):
        return "another text"
    if type(value) is tuple:
        return "another tuple"
    if is_constant(value):
        text = repr(value)
        return text if len(text) <= _MAX_REPR_LENGTH else f"another {type(value).__name__}"
    if is_a(value, FunctionType):
        return _describe_function(value)
    if is_a(value, BuiltinFunctionType):
        return f"the built-in function {value.__name__!r}"
    if is_a(value, type):
        return f"the class {value.__module__}.{value.__qualname__}"
    bare: Any = None
    for kind, name in _WRAPPERS:
        if is_a(value, kind):
            bare = getattr(value, name)
    if is_a(bare, FunctionType):
        return f"a {type(value).__name__} of {_describe_function(bare)}"
    return f"an object of {type(value).__module__}.{type(value).__qualname__}"


def _describe_function(function: FunctionType) -> str:
    code = function.__code__
    place = f"{PurePath(code.co_filename).name}:{code.co_firstlineno}"
    # functools.wraps copies the wrapped name to the function, but not to its code (Python 3.11).
    name = getattr(code, "co_qualname", code.co_name)
    return f"{function.__globals__.get('__name__')}.{name} ({place})"


def _object_mismatches(
    value: Any,
    live: Mapping[str, Any],
    call: Sequence[Literal],
    named: Mapping[str, Literal],
    inits: Mapping[str, Definitions],
) -> Iterator[tuple[str, str, bool]]:
    """Yield the attributes of an object that differ from those its constructor call sets.

    Args:
        value: The object bound to a name.
        live: The names of its module.
        call: The dotted name of the called class, and the positional arguments.
        named: The keyword arguments.
        inits: The definitions in the sources of the package, by module.

    Yields:
        The attribute, a clause that describes it, and whether the object's methods set it.
    """
    kind = resolve_name(str(call[0]), live)
    if not is_a(kind, type) or type(value) is not kind:
        return
    made = _expected_attributes(kind, call[1:], named, inits)
    if made is None:
        return
    expected, changed = made
    found = module_dict(value)
    for name, before in expected.items():
        now = found.get(name, _UNKNOWN)  # unknown in a class with slots, for example
        if before is not _UNKNOWN and now is not _UNKNOWN and not _still_contains(before, now):
            there = f" and not {describe_value(before)}" if is_constant(now) else ""
            yield name, f"is {describe_value(now)}{there}", changed.get(name) == Rebinding.RUNNING
    for name in (each for each in found if each not in expected and each[:2] != "__"):
        if changed.get(name, Rebinding.ON_REQUEST) == Rebinding.ON_REQUEST:
            yield name, f"was set to {describe_value(found[name])}", False


def _expected_attributes(
    kind: type,
    given: Sequence[Literal],
    named: Mapping[str, Literal],
    inits: Mapping[str, Definitions],
) -> tuple[dict[str, Any], dict[str, int]] | None:
    """Return the attributes that a call sets, and those that methods change."""
    if kind in (SimpleNamespace, argparse.Namespace):
        return None if given else ({n: _constant_value(v) for n, v in named.items()}, {})
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
            expected = _attributes_from_init(found, given, named)
        elif _DATACLASS_FIELDS in vars(each):
            expected = _attributes_from_fields(each, given, named)
        else:
            continue
        if expected is None:
            return None
    return expected or {}, changed


def _attributes_from_init(
    found: Initializer, given: Sequence[Literal], named: Mapping[str, Literal]
) -> dict[str, Any] | None:
    names = [name for name, _ in found.parameters]
    if len(given) > len(names) or not named.keys() <= set(names):
        return None
    arguments = {**dict(found.parameters), **dict(zip(names, given, strict=False)), **named}
    return {
        name: _constant_value(arguments[parameter] if parameter else literal)
        for name, (parameter, literal) in found.attributes.items()
    }


def _attributes_from_fields(
    kind: type, given: Sequence[Literal], named: Mapping[str, Literal]
) -> dict[str, Any] | None:
    fields = [f for f in vars(kind)[_DATACLASS_FIELDS].values() if isinstance(f, dataclasses.Field)]
    fields = [f for f in fields if f._field_type is dataclasses._FIELD]  # type: ignore[attr-defined]
    names = [field.name for field in fields if field.init and not field.kw_only]
    if len(given) > len(names):
        return None
    arguments = {**dict(zip(names, given, strict=False)), **named}
    made = {f.name: f.default if is_constant(f.default) else _UNKNOWN for f in fields}
    return made | {name: _constant_value(arguments[name]) for name in made if name in arguments}


def _constant_value(literal: Literal) -> Any:
    """Return the value of a literal, or unknown if it is mutable."""
    made = _evaluate(literal)
    return made if is_constant(made) else _UNKNOWN


def _evaluate(literal: Literal) -> Any:
    """Evaluate a literal, which is stored in a list as text, or return unknown."""
    if not isinstance(literal, list):
        return literal
    import ast  # seldom needed

    return ast.literal_eval(literal[0]) if literal else _UNKNOWN


def _still_contains(first: Any, value: Any) -> bool:
    """Return whether a value equals its literal; containers may have additional items."""
    if first in ({}, []):
        return type(value) in (dict, list)
    if type(value) is not type(first):
        return False
    if isinstance(first, tuple):
        return len(first) == len(value) and all(map(_still_contains, first, value))
    if isinstance(first, dict):
        return all(key in value and _still_contains(first[key], value[key]) for key in first)
    if isinstance(first, list):
        return len(value) >= len(first) and all(map(_still_contains, first, value))
    if isinstance(first, set):
        return bool(first <= value)
    return is_constant(value) and repr(first) == repr(value)


class SourceMismatch(NamedTuple):
    """A name whose value differs from its source.

    Attributes:
        path: The dotted name, such as ``Net.forward``.
        what: A clause that describes the current value.
        line: The line of its definition in the source, 1-based.
        is_attribute: Whether it is an attribute of a class or an object.
        is_own: Whether code of the module or the object itself appears to have changed it.
        home: The module of the function that replaced it, or an empty string.
    """

    path: str
    what: str
    line: int
    is_attribute: bool = False
    is_own: bool = False
    home: str = ""


@dataclass
class LiveModule:
    """A module of this process, compared with the definitions in its source.

    Attributes:
        live: The names of the module.
        defined: The definitions in its source.
        file: The file name in its functions' code, or None if its loader may rewrite the code.
        inits: The definitions in the sources of the package, by module.
        is_plain: Whether the module has Python's own class, which keeps all names.
    """

    live: Mapping[str, Any]
    defined: Definitions
    file: str | None
    inits: Mapping[str, Definitions]
    is_plain: bool

    def mismatches(self) -> Iterator[SourceMismatch]:
        """Yield every name whose value differs from the source."""
        for path, body in self.defined.bodies.items():
            outside, _, name = path.rpartition(".")
            if not path:
                yield from self._body_mismatches(_Scope(self.live, is_complete=self.is_plain), body)
            # An import or another statement may bind the name of the class as well.
            elif "*" not in body.unread and name not in self.defined.bodies[outside].unread:
                kind = self._class_at(path)
                if kind is not None:
                    scope = _class_scope(path, kind, body, self.live)
                    yield from self._body_mismatches(scope, body)
                    if not scope.is_special:
                        yield from self._added_attributes(scope, body)

    def _class_at(self, path: str) -> type | None:
        found: Any = self.live.get(path.partition(".")[0])
        for name in path.split(".")[1:]:
            found = vars(found).get(name) if is_a(found, type) else None
        return found if is_a(found, type) and self._is_class(found, path) else None

    def _body_mismatches(self, scope: _Scope, body: Body) -> Iterator[SourceMismatch]:
        def is_certain(name: str) -> bool:
            """Return whether the body always binds a name and its scope keeps it."""
            return scope.is_complete and name not in body.conditional

        plain: list[tuple[str, int, Any]]
        plain = [(name, line, _MISSING) for name, line in body.functions.items()]
        if scope.has_data:
            plain += [(name, line, literal) for name, (line, literal) in body.values.items()]
        for name, line, literal in plain:
            value = scope.names.get(name, _MISSING)
            if value is _MISSING and not is_certain(name):
                continue
            if literal is _MISSING:
                is_kept = self._is_made_of(value, name, scope)
            else:
                is_kept = self._matches_literal(literal, value, scope)
            if not is_kept:
                yield scope.changed(name, value, line, literal)
        for name, rows in body.others.items():
            if name in scope.names or is_certain(name):
                yield from self._row_mismatches(scope, name, rows)

    def _row_mismatches(
        self, scope: _Scope, name: str, rows: Sequence[Row]
    ) -> Iterator[SourceMismatch]:
        """Yield mismatches of a name that has several bindings, or a complex one."""
        value = scope.names.get(name, _MISSING)
        line, kind, given, named = rows[-1]
        if kind == "call" and len(rows) == 1:
            found = _object_mismatches(value, self.live, given, named, self.inits)
            for attribute, what, is_own in found:
                yield SourceMismatch(f"{scope.prefix}{name}.{attribute}", what, line, True, is_own)
            return
        if any(self._may_bind(row, value, name, scope) for row in rows):
            return
        if kind == "holds" and is_a(value, (dict, list, set)):
            yield SourceMismatch(scope.prefix + name, "has other items", line, bool(scope.prefix))
        else:
            yield scope.changed(name, value, line, given[0] if kind == "is" else _MISSING)

    def _may_bind(self, row: Row, value: Any, name: str, scope: _Scope) -> bool:
        """Return whether a statement may have bound a name to its current value."""
        _, kind, given, named = row
        if kind == "def":
            return self._is_decorated(value, named[""], given, scope)
        if kind == "class":
            return bool(given) or self._is_class(value, scope.prefix + name)
        if kind == "is":
            return not scope.has_data or self._matches_literal(given[0], value, scope)
        if kind == "holds":
            is_kept = given[0] == [] or _still_contains(_evaluate(given[0]), value)
            return is_kept or not scope.has_data
        return True

    def _is_class(self, value: Any, path: str) -> bool:
        if not is_a(value, type):
            return value is not _MISSING and not is_a(value, FunctionType)
        module, here = defining_module(value), str(self.live.get("__name__"))
        # Libraries set ``__module__`` of classes to the public module that users import.
        return value.__qualname__ == path and root_of(module) == root_of(here)

    def _is_decorated(
        self, value: Any, name: Literal, decorators: Sequence[Literal], scope: _Scope
    ) -> bool:
        """Return whether decorators may have made a value from a function."""
        found = list(unwrap_functions(value))
        if value is not _MISSING and not found:
            return True
        if any(each.__globals__ is self.live and each.__code__.co_name == name for each in found):
            return True
        named = (resolve_name(str(each), self.live) for each in decorators)
        makers = {root_of(defining_module(each)) for each in named}
        return any(root_of(defining_module(each)) in makers for each in found)

    def _is_made_of(self, value: Any, name: str, scope: _Scope) -> bool:
        """Return whether Python, a metaclass, or a base made a value from a plain function."""
        bare = value.__func__ if is_a(value, (staticmethod, classmethod)) else value
        if is_a(bare, FunctionType) and self._is_own(bare, scope, name):
            return True
        found = list(unwrap_functions(bare))
        holds_own = any(self._is_own(each, scope, name) for each in found)
        if scope.is_special or self.file is None:
            return holds_own or not found or defining_module(found[0]) in scope.makers
        return holds_own and defining_module(found[0]) in scope.makers

    def _is_own(self, function: FunctionType, scope: _Scope, name: str) -> bool:
        """Return whether a function is the one in the source. Its name may be mangled."""
        code = function.__code__
        if function.__globals__ is not self.live or not name.endswith(code.co_name):
            return False
        is_here = self.file is None or code.co_filename == self.file
        return is_here and function.__qualname__ == scope.prefix + code.co_name

    def _matches_literal(self, literal: Literal, value: Any, scope: _Scope) -> bool:
        """Return whether a literal has a value, or class creation may have replaced it."""
        if literal == [] or _still_contains(_evaluate(literal), value):
            return True
        return scope.is_special and not is_constant(value)

    def _added_attributes(self, scope: _Scope, body: Body) -> Iterator[SourceMismatch]:
        """Yield attributes of a plain class that its statement does not define."""
        for name, value in scope.names.items():
            if any(
                name in each for each in (body.functions, body.values, body.others, body.unread)
            ):
                continue
            is_function = type(value) is FunctionType
            if is_function:
                is_made = value.__code__.co_filename.startswith("<") or name[:10] == "__annotate"
                if is_made or (value.__globals__ is self.live and not scope.prefix):
                    continue
            if is_function or (is_constant(value) and not name.startswith("__")):
                yield scope.mismatch(name, f"was set to {describe_value(value)}", body.line, value)


class _Scope(NamedTuple):
    """A module or a class, and how it treats the names that its body binds.

    Attributes:
        names: Its current names.
        prefix: The prefix of its names in qualified names.
        makers: The modules whose code takes part in creating it.
        is_special: Whether decorators, a metaclass, or ``__init_subclass__`` take part.
        has_data: Whether it keeps the values that its body assigns.
        is_complete: Whether it keeps all names that its body binds.
    """

    names: Mapping[str, Any]
    prefix: str = ""
    makers: frozenset[str] = frozenset()
    is_special: bool = False
    has_data: bool = True
    is_complete: bool = True

    def changed(
        self, name: str, value: Any, line: int, literal: Literal | object = _MISSING
    ) -> SourceMismatch:
        what = "was deleted" if value is _MISSING else f"is {describe_value(value)}"
        is_shown = is_constant(literal) and is_constant(value) and not isinstance(literal, str)
        before = f" and not {describe_value(literal)}" if is_shown else ""
        return self.mismatch(name, what + before, line, value)

    def mismatch(self, name: str, what: str, line: int, value: Any) -> SourceMismatch:
        found = next(unwrap_functions(value), None)
        module = defining_module(found)
        here = self.names.get("__module__" if self.prefix else "__name__")
        is_own = found is not None and "<locals>" in found.__qualname__ and module == str(here)
        return SourceMismatch(self.prefix + name, what, line, bool(self.prefix), is_own, module)


def _class_scope(path: str, kind: type, body: Body, live: Mapping[str, Any]) -> _Scope:
    meta = type(kind)
    bases = kind.__mro__[1:-1]
    makes_subclasses = any("__init_subclass__" in vars(base) for base in bases)
    has_data = meta in _PLAIN_METACLASSES and not _is_named_tuple(kind)
    is_special = bool(not has_data or body.decorators or makes_subclasses)
    makers = {defining_module(base) for base in (*type.mro(meta)[:-1], *bases)}
    makers.update(defining_module(resolve_name(each, live)) for each in body.decorators)
    if not is_special:
        makers.discard(kind.__module__)
    return _Scope(vars(kind), f"{path}.", frozenset(makers), is_special, has_data, not is_special)


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")
