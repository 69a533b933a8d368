"""Objects that a module makes of literals: whether their attributes are still what that gives."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

from modpack.core.defined import Defined, Literal, Setting
from modpack.packing.livewords import is_plain, shown
from modpack.resolution.live import contents_of, is_a

__all__ = ["object_deviations"]

_UNKNOWN: Final = object()
_NAMESPACES: Final = (SimpleNamespace, argparse.Namespace)
_MADE_BY: Final = "__dataclass_fields__"


def object_deviations(
    value: Any,
    live: Mapping[str, Any],
    call: Sequence[Literal],
    named: Mapping[str, Literal],
    inits: Mapping[str, Defined],
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
    kind = _looked_up(str(call[0]), live)
    if not is_a(kind, type) or type(value) is not kind:
        return
    made = _made(kind, call[1:], named, inits)
    if made is None:
        return
    expected, changed, is_complete = made
    found = contents_of(value)
    for name, before in expected.items():
        if before is _UNKNOWN:
            continue
        now = found.get(name, _UNKNOWN)
        if now is _UNKNOWN:  # of a class with slots, for one
            continue
        if is_plain(now) and type(now) is type(before) and repr(now) == repr(before):
            continue
        there = f" and not {shown(before)}" if is_plain(now) else ""
        yield name, f"is {shown(now)}{there}", changed.get(name) == Setting.RUNNING
    if is_complete:
        for name in found.keys() - expected.keys() - changed.keys():
            yield name, f"was set to {shown(found[name])}", False
        for name in changed.keys() & found.keys() - expected.keys():
            if changed[name] == Setting.ON_REQUEST:
                yield name, f"was set to {shown(found[name])}", False


def _looked_up(name: str, live: Mapping[str, Any]) -> object:
    first, *others = name.split(".")
    found = live.get(first)
    for part in others:
        found = contents_of(found).get(part)
    return found


def _made(
    kind: type, given: Sequence[Literal], named: Mapping[str, Literal], inits: Mapping[str, Defined]
) -> tuple[dict[str, Any], dict[str, int], bool] | None:
    """The attributes that a call gives, those that methods change, and whether these are all."""
    if kind in _NAMESPACES:
        return None if given else ({n: _value(v) for n, v in named.items()}, {}, True)
    expected: dict[str, Any] = {}
    changed: dict[str, int] = {}
    is_made = False
    for each in kind.__mro__[:-1]:
        defined = inits.get(each.__module__)
        found = defined.initializers.get(each.__qualname__) if defined is not None else None
        if found is None:
            return None
        changed = {**found.changed, **changed}
        if is_made:
            continue
        if _MADE_BY in vars(each) and "__init__" not in _functions(each, inits):
            own, is_made = _of_dataclass(each, given, named), True
        elif "__init__" in _functions(each, inits):
            own, is_made = _of_parameters(found, given, named), True
        else:
            own = {}
        if own is None:
            return None
        expected.update(own)
    return expected, changed, True


def _functions(kind: type, inits: Mapping[str, Defined]) -> Mapping[str, int]:
    body = inits[kind.__module__].bodies.get(kind.__qualname__)
    return body.functions if body is not None else {}


def _of_parameters(
    found: Any, given: Sequence[Literal], named: Mapping[str, Literal]
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
    made: dict[str, Any] = {}
    for field in fields:
        if field.name in arguments:
            made[field.name] = _value(arguments[field.name])
        else:
            is_plain_default = is_plain(field.default)
            made[field.name] = field.default if is_plain_default else _UNKNOWN
    return made


def _value(literal: Literal) -> Any:
    """What a literal of a row gives."""
    if not isinstance(literal, list):
        return literal
    import ast

    if not literal:
        return _UNKNOWN
    made = ast.literal_eval(literal[0])
    return made if is_plain(made) else _UNKNOWN
