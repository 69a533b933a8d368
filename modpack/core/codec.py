"""Conversion of records to JSON and back.

A record is a NamedTuple or a dataclass, and the annotations of its fields describe its JSON. Input
may come from anywhere, so every value is checked against its field.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from itertools import repeat
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from modpack.core.json_values import Json
from modpack.core.names import why_too_long

T = TypeVar("T")

ModulePath: TypeAlias = Annotated[str, why_too_long]
"""A string that is not too long for a module path. Nothing else is checked."""


def _check_line(value: int) -> str | None:
    return None if value > 0 else "line numbers start at 1"


Line: TypeAlias = Annotated[int, _check_line]

_MAX_SECONDS: Final = 1e12
_PLAIN_TYPES: Final = frozenset({str, int, bool, float, NoneType})
_Read: TypeAlias = Callable[[Any], Any]
_Field: TypeAlias = tuple[str, str, _Read, bool]
"""Name of a field, its key, the function that reads it, and whether the key may be missing."""


class MismatchError(TypeError):
    """A value of a document has the wrong type. The text names its position."""

    def __init__(self, problem: str, quotes_key: bool = True) -> None:
        self._problem = problem
        self._quotes_key = quotes_key
        self._steps: list[str | int] = []
        self.label = ""

    def add_step(self, step: str | int) -> None:
        """Add the key or index of the value in the enclosing object or list."""
        self._steps.append(step)

    def __str__(self) -> str:
        # A key may contain anything and be as long as the document.
        # The innermost step is the first: each level adds its own while the error propagates.
        names = [f"item {s}" if isinstance(s, int) else f"the {s:.60}" for s in self._steps]
        if self._quotes_key and self._steps and isinstance(self._steps[0], str):
            names[0] = f"{self._steps[0]!r:.60}"
        return f"{' of '.join([*names, self.label])} {self._problem}"


_Keys: TypeAlias = tuple[Mapping[str, str], frozenset[str], frozenset[str], tuple[str, ...]]
"""The arguments of :func:`json_keys` for one record: names, optional, omitted, and derived keys."""
_NO_KEYS: Final[_Keys] = ({}, frozenset(), frozenset(), ())


def json_keys(
    names: Mapping[str, str] | None = None,
    *,
    optional: Collection[str] = (),
    omitted: Collection[str] = (),
    derived: Collection[str] = (),
) -> Callable[[type[T]], type[T]]:
    """Describe how the JSON of a record differs from its fields.

    Args:
        names: Keys of the fields and properties that have another name in JSON.
        optional: Fields with a default, whose keys may be missing when a document is read.
        omitted: Fields that are not written. Those of a record that is read have a default.
        derived: Properties that are written after the fields, and ignored when a document is read.
    """

    def set_keys(kind: type[T]) -> type[T]:
        keys: _Keys = (names or {}, frozenset(optional), frozenset(omitted), tuple(derived))
        kind.__json_keys__ = keys  # type: ignore[attr-defined]
        return kind

    return set_keys


def to_json(value: object, *, as_row: bool = False) -> Json:
    """Return a value as JSON: records as objects, tuples as lists, enum members as their values.

    Bytes become strings in base64.

    Args:
        value: The value.
        as_row: Whether all records in it become lists of their fields' values.

    >>> to_json({"numbers": (1, 2)})
    {'numbers': [1, 2]}
    """
    if type(value) in _PLAIN_TYPES:
        return cast(Json, value)
    # Most enums here are strings as well, which the last line would take for sequences.
    if isinstance(value, Enum):
        return cast(Json, value.value)
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        return {key: to_json(each, as_row=as_row) for key, each in value.items()}
    kind: Any = type(value)
    fields = written_keys(kind)
    if fields is not None:
        values = [getattr(value, name) for name in fields]
        values = [v if type(v) in _PLAIN_TYPES else to_json(v, as_row=as_row) for v in values]
        return values if as_row else dict(zip(fields.values(), values, strict=True))
    return [to_json(each, as_row=as_row) for each in cast("Sequence[object]", value)]


def record_to_json(record: object) -> dict[str, Json]:
    """Return a record as a JSON object."""
    return cast("dict[str, Json]", to_json(record))


def from_json(kind: type[T], value: object, label: str, *, as_row: bool = False) -> T:
    """Read a record that :func:`to_json` returned. Unknown keys are ignored.

    Args:
        kind: Class of the record.
        value: The parsed JSON.
        label: Name of the value, for the error.
        as_row: Whether records are lists of their fields' values.

    Raises:
        MismatchError: If a key is missing or a value has the wrong type.

    >>> from typing import NamedTuple
    >>> class Point(NamedTuple):
    ...     x: int
    ...     y: int
    >>> from_json(Point, {"x": 1, "y": 2, "color": "red"}, "the point")
    Point(x=1, y=2)
    """
    described: Any = kind
    try:
        return cast(T, _reader(described, as_row)(value))
    except MismatchError as failure:
        failure.label = label
        raise


def _wrong(expected: str, found: object) -> MismatchError:
    return MismatchError(f"must be {expected}, not {found!r:.60}")


def _plain(kind: type, expected: str) -> _Read:
    def read(value: object) -> object:
        if type(value) is not kind:
            raise _wrong(expected, value)
        return value

    return read


def _number(value: object) -> object:
    # Not isinstance, which accepts True.
    if type(value) is not int or value < 0:
        raise _wrong("an integer from 0", value)
    return value


def _seconds(value: object) -> float:
    """Read a duration. JSON in Python has infinities, and integers beyond the range of floats."""
    if type(value) in (int, float) and 0 <= cast(float, value) < _MAX_SECONDS:
        return float(cast(float, value))
    raise _wrong("a duration in seconds", value)


def _text_or_truth(value: object) -> object:
    if type(value) not in (bool, str):
        raise _wrong("a string, true or false", value)
    return value


def _text_or_number(value: object) -> object:
    return value if type(value) is str else _number(value)


def _bytes(value: object) -> bytes:
    try:
        return b64decode(cast(str, value), validate=True)
    except (TypeError, ValueError):
        raise _wrong("bytes in base64", value) from None


_READERS: Final[dict[Any, _Read]] = {
    str: _plain(str, "a string"),
    bool: _plain(bool, "true or false"),
    int: _number,
    float: _seconds,
    bytes: _bytes,
}


def _optional(read_present: _Read) -> _Read:
    return lambda value: None if value is None else read_present(value)


def _restricted(read_any: _Read, why_not: Callable[[Any], str | None]) -> _Read:
    def read(value: object) -> object:
        checked = read_any(value)
        reason = why_not(checked)
        if reason is not None:
            raise MismatchError(f"cannot be {checked!r:.60}: {reason}")
        return checked

    return read


def _choice(choices: Mapping[Any, object]) -> _Read:
    def read(value: object) -> object:
        # The type first: a list or an object cannot be looked up in a dict.
        if type(value) is not str or value not in choices:
            raise _wrong(f"one of {', '.join(choices)}", value)
        return choices[value]

    return read


def _items(read_item: _Read) -> _Read:
    def read(value: object) -> tuple[object, ...]:
        if not isinstance(value, list):
            raise _wrong("a list", value)
        return tuple(_read_each(repeat(read_item), value))

    return read


def _row(readers: Sequence[_Read]) -> _Read:
    def read(value: object) -> list[object]:
        if not isinstance(value, list) or len(value) != len(readers):
            raise _wrong(f"a list of {len(readers)} items", value)
        return _read_each(readers, value)

    return read


def _read_each(readers: Iterable[_Read], values: Sequence[object]) -> list[object]:
    items: list[object] = []
    try:
        for read_item, each in zip(readers, values, strict=False):
            items.append(read_item(each))
    except MismatchError as failure:
        failure.add_step(len(items))
        raise
    return items


def _mapping(read_key: _Read, read_item: _Read) -> _Read:
    def read(value: object) -> dict[object, object]:
        if not isinstance(value, dict):
            raise _wrong("an object", value)
        items: dict[object, object] = {}
        for key, each in value.items():
            try:
                items[read_key(key)] = read_item(each)
            except MismatchError as failure:
                failure.add_step(key)
                raise
        return items

    return read


def _record(kind: Any, fields: Sequence[_Field]) -> _Read:
    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise _wrong("an object", value)
        fields_by_name: dict[str, object] = {}
        for name, key, read_field, is_optional in fields:
            if key not in value:
                # Without the key, the default of the field applies.
                if is_optional:
                    continue
                raise MismatchError(f"has no {key!r}", quotes_key=False)
            try:
                fields_by_name[name] = read_field(value[key])
            except MismatchError as failure:
                failure.add_step(key)
                raise
        return kind(**fields_by_name)

    return read


@cache
def written_keys(kind: Any) -> dict[str, str] | None:
    """Return the keys that are written for a record, by attribute. None if it is not a record."""
    fields = _field_names(kind)
    if fields is None:
        return None
    names, _, omitted, derived = getattr(kind, "__json_keys__", _NO_KEYS)
    written = [name for name in fields if name not in omitted] + list(derived)
    return {name: names.get(name, name) for name in written}


def _field_names(kind: Any) -> Collection[str] | None:
    return getattr(kind, "_fields", None) or getattr(kind, "__dataclass_fields__", None)


@cache
def _reader(kind: Any, as_row: bool) -> _Read:
    """Return the function that checks and converts the JSON values of a type."""
    if kind in _READERS:
        return _READERS[kind]
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _restricted(_reader(parts[0], as_row), parts[1])
    if origin in (Union, UnionType):
        kinds = [part for part in parts if part is not NoneType]
        if len(kinds) == 1:
            read = _reader(kinds[0], as_row)
        else:
            read = _text_or_number if int in kinds else _text_or_truth
        return read if len(kinds) == len(parts) else _optional(read)
    if origin is Literal:
        return _choice({choice: choice for choice in parts})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _choice({member.value: member for member in kind})
    if origin is tuple and parts[-1] is not Ellipsis:
        read_parts = _row([_reader(part, as_row) for part in parts])
        return lambda value: tuple(read_parts(value))
    if origin is tuple:
        return _items(_reader(parts[0], as_row))
    if origin in (Mapping, dict):
        return _mapping(_reader(parts[0], as_row), _reader(parts[1], as_row))
    # Annotations are postponed, so they are text. The cache evaluates them once for each type.
    hints = get_type_hints(kind, include_extras=True)
    names, optional, omitted, _ = getattr(kind, "__json_keys__", _NO_KEYS)
    fields = [
        # An omitted field was not written, so its key is missing as well.
        (name, names.get(name, name), _reader(hints[name], as_row), name in optional | omitted)
        for name in _field_names(kind) or ()
    ]
    if as_row:
        read_row = _row([read for _, _, read, _ in fields])
        return lambda value: kind(*read_row(value))
    return _record(kind, fields)
