"""Checked values of JSON and TOML documents, and of public arguments.

A value of the wrong type is a TypeError with the expected type. The caller adds the document.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn, TypeAlias, cast

from modpack.core.names import did_you_mean

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None

_BYTES_OF: Final = ((b"[", 100), (b"{", 100), (b",", 40), (b":", 60))
"""Upper bounds of the memory that Python needs for each of these characters, in bytes."""
_PAIR_BYTES: Final = 120
"""Additional bytes for a key and its value while they are a pair."""

_TEXT: Final = rb'(?s:"[^"\\]*(?:\\.[^"\\]*)*")'
_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(set(range(256)).difference(b"[]{}"))


def parse_json(
    content: bytes,
    max_bytes: int | None = None,
    *,
    unique_keys: bool = False,
    max_depth: int | None = None,
) -> Json:
    """Parse a JSON document in UTF-8, without NaN or infinities (RFC 8259).

    Args:
        content: The document.
        max_bytes: Limit of the memory for its values, in bytes. Estimated before parsing.
        unique_keys: Whether to reject an object with a duplicate key. Otherwise, the last value
            counts.
        max_depth: Maximum nesting of lists and objects. Python's own limit remains in any case.

    Raises:
        ValueError: If the document is invalid, is nested too deeply, or exceeds ``max_bytes``.

    >>> parse_json(b'{"a": [1, null]}', 10_000)
    {'a': [1, None]}
    """
    text = content.decode("utf-8")
    if max_bytes is not None:
        # Before parsing, when no memory is taken yet. Signs in strings count too: it is an upper
        # bound.
        needed = sum(content.count(sign) * cost for sign, cost in _BYTES_OF)
        needed += content.count(b":") * _PAIR_BYTES if unique_keys else 0
        if needed > max_bytes:
            raise ValueError(
                f"the values need {needed} bytes of memory, and the limit is {max_bytes}"
            )
    try:
        if text.startswith("\ufeff"):
            json.loads(text)  # raises the error for a byte order mark
        # json.loads would create a decoder for each text.
        parsed = cast("Json", (_DECODER_OF_UNIQUE if unique_keys else _DECODER).decode(text))
        is_too_deep = max_depth is not None and is_deeper(content, max_depth)
    except RecursionError:
        is_too_deep = True
    if is_too_deep:
        limit = "too deeply" if max_depth is None else f"more than {max_depth} levels deep"
        raise ValueError(f"the values are nested {limit}")
    return parsed


def ascii_json(value: object) -> bytes:
    r"""Return a value's JSON, with escapes for what UTF-8 cannot encode; sorted for equal bytes.

    >>> ascii_json({"b": 1, "a": "\ud800"})
    b'{"a":"\\ud800","b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def is_deeper(content: bytes, depth: int) -> bool:
    """Return whether the values of a valid JSON document are nested more deeply.

    The brackets alone decide that, in a hundredth of the time of a walk through the values.

    >>> is_deeper(b'[{"a]": [1, 2]}, []]', 2), is_deeper(b'[{"a]": [1, 2]}, []]', 3)
    (True, False)
    """
    if content.count(b"[") + content.count(b"{") <= depth:
        return False
    brackets = re.sub(_TEXT, b"", content).translate(_SQUARE, _NO_BRACKETS)
    for _ in range(depth):  # each time, the innermost values disappear
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _unique_keys(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    # A dict keeps the last value of a key, and other parsers may keep the first.
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)
_DECODER_OF_UNIQUE: Final = json.JSONDecoder(
    parse_constant=_refuse_constant, object_pairs_hook=_unique_keys
)


def as_text(value: object, label: str) -> str:
    """Return a value that must be a string.

    >>> as_text("1.0", "a version")
    '1.0'
    """
    if not isinstance(value, str):
        raise TypeError(f"{label} is not a string")
    return value


def as_optional_text(value: object, label: str) -> str | None:
    """Return a value that must be a string or null."""
    return None if value is None else as_text(value, label)


def as_list(value: Json, label: str) -> list[Json]:
    """Return a value that must be a list."""
    if not isinstance(value, list):
        raise TypeError(f"{label} is not a list")
    return value


def as_mapping(value: Json, label: str) -> dict[str, Json]:
    """Return a value that must be an object."""
    if not isinstance(value, dict):
        raise TypeError(f"{label} is not an object")
    return value


class BrokenTomlError(ValueError):
    """A file is not valid TOML, or no TOML parser is installed."""


def read_toml(file: Path) -> dict[str, object]:
    """Read a TOML file.

    Raises:
        BrokenTomlError: If the file is not valid TOML.
        OSError: If the file cannot be read.
    """
    loads, errors = _reader()
    try:
        return loads(file.read_bytes().decode("utf-8"))
    except UnicodeDecodeError as failure:
        raise BrokenTomlError(f"the file is not valid UTF-8: {failure}") from failure
    except (errors, RecursionError) as failure:
        raise BrokenTomlError(f"the file is not valid TOML: {failure}") from failure


def _reader() -> tuple[Callable[[str], dict[str, object]], type[Exception]]:
    for name in ("tomllib", "tomli"):
        try:
            reader = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        return cast(Callable[[str], dict[str, object]], reader.loads), reader.TOMLDecodeError
    raise BrokenTomlError(
        "Python 3.10 has no TOML parser. Run `pip install tomli`, or use Python 3.11."
    )


def unknown_keys(table: Mapping[str, object], known: Sequence[str], path: str) -> Iterator[str]:
    """Yield a sentence for each unknown key of a table, with a similar known key.

    >>> list(unknown_keys({"extern": 1}, ["externs", "native"], "trust"))
    ["trust.extern: unknown key. Did you mean 'externs'?"]
    """
    for key in table:
        if key not in known:
            hint = did_you_mean(key, known, f"Known keys: {', '.join(known)}.")
            yield f"{path}.{key}: unknown key. {hint}"


def kind_in_toml(value: object) -> str:
    """Return the name of a value's type in TOML.

    >>> kind_in_toml(True), kind_in_toml({})
    ('a boolean', 'a table')
    """
    names = {bool: "a boolean", int: "an integer", float: "a float", str: "a string"}
    names |= {list: "an array of other values", dict: "a table"}
    return names.get(type(value), f"a {type(value).__name__}")


def require_type(
    value: object, kinds: type | tuple[type, ...], argument: str, expected: str
) -> None:
    """Check the type of an argument.

    Args:
        value: The argument.
        kinds: Accepted types. A bool is accepted only if bool is among them.
        argument: Name of the argument.
        expected: Expected type, for the error.

    Raises:
        TypeError: If the type is not accepted.

    >>> require_type(3, str, "text", "a str")
    Traceback (most recent call last):
    TypeError: text must be a str, not int
    """
    allowed = kinds if isinstance(kinds, tuple) else (kinds,)
    # For isinstance, a bool is an int.
    is_stray_bool = isinstance(value, bool) and bool not in allowed and object not in allowed
    if is_stray_bool or not isinstance(value, allowed):
        raise TypeError(f"{argument} must be {expected}, not {type(value).__name__}")
