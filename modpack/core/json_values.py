"""Checked values of JSON and TOML documents, and of public arguments.

A wrong kind is a TypeError that says what was expected; whoever reads the document names it.
"""

from __future__ import annotations

import difflib
import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, NoReturn, TypeAlias, cast

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None

_BYTES_OF: Final = ((b"[", 100), (b"{", 100), (b",", 40), (b":", 60))
"""What each of these signs costs in memory at most, as what Python makes of it."""
_PAIR_BYTES: Final = 120
"""What a key and its value cost besides while they are a pair."""


def parse_json(content: bytes, most_bytes: int, *, unique_keys: bool = False) -> Json:
    """The values of a JSON document, in UTF-8 and without NaN or infinities (RFC 8259).

    Args:
        content: the document.
        most_bytes: how many bytes of memory its values may take; estimated before any is made.
        unique_keys: whether to refuse an object that has a key twice; otherwise its last value
            counts.

    Raises:
        ValueError: it is no such document, it is nested too deeply for Python, or it would take
            more memory.

    >>> parse_json(b'{"a": [1, null]}', 10_000)
    {'a': [1, None]}
    """
    text = content.decode("utf-8")
    colons = content.count(b":")
    needed = sum(content.count(sign) * cost for sign, cost in _BYTES_OF)
    needed += colons * _PAIR_BYTES if unique_keys else 0
    if needed > most_bytes:
        raise ValueError(f"it would take {needed} bytes of memory, and {most_bytes} are allowed")
    try:
        parsed = cast("Json", _decode(text))
        if unique_keys and not _has_keys(parsed, colons):
            json.loads(text, object_pairs_hook=_refuse_duplicates)
    except RecursionError as failure:
        raise ValueError("it is nested too deeply") from failure
    return parsed


def _has_keys(document: Json, colons: int) -> bool:
    """Whether a document has as many keys as there are colons in its text.

    Then none stood there twice, since each has a colon behind it: no object has to be looked at
    while it is made, which would take twice as long.
    """
    level: list[Json] = [document]
    while level:
        objects = [each for each in level if isinstance(each, dict)]
        colons -= sum(map(len, objects))
        if not colons:
            return True
        lists = (each for each in level if isinstance(each, list))
        level = [*chain.from_iterable(map(dict.values, objects)), *chain.from_iterable(lists)]
    return False


def _refuse_duplicates(pairs: list[tuple[str, Json]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key is there twice")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it has {name}, which is no JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def _decode(text: str) -> object:
    if text.startswith("\ufeff"):
        return json.loads(text)  # its error
    return _DECODER.decode(text)  # json.loads would make a new decoder for each text


def as_text(value: object, what: str) -> str:
    """A text.

    >>> as_text("1.0", "a version")
    '1.0'
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} is no text")
    return value


def as_optional_text(value: object, what: str) -> str | None:
    """A text, or null."""
    return None if value is None else as_text(value, what)


def as_truth(value: Json, what: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} is neither true nor false")
    return value


def as_number(value: Json, what: str) -> int:
    """A whole number."""
    if type(value) is not int:
        raise TypeError(f"{what} is no number")
    return value


def as_list(value: Json, what: str) -> list[Json]:
    """A list."""
    if not isinstance(value, list):
        raise TypeError(f"{what} is no list")
    return value


def as_mapping(value: Json, what: str) -> dict[str, Json]:
    """An object."""
    if not isinstance(value, dict):
        raise TypeError(f"{what} is no object")
    return value


class BrokenTomlError(ValueError):
    """A file is no TOML, or nothing here can read TOML."""


def read_toml(file: Path) -> dict[str, object]:
    """The document in a file.

    Raises:
        BrokenTomlError: it is no TOML; says why.
        OSError: it cannot be read.
    """
    loads, errors = _reader()
    try:
        return loads(file.read_bytes().decode("utf-8"))
    except UnicodeDecodeError as failure:
        raise BrokenTomlError(f"it is no UTF-8: {failure}") from failure
    except (errors, RecursionError) as failure:
        raise BrokenTomlError(f"it is no valid TOML: {failure}") from failure


def _reader() -> tuple[Callable[[str], dict[str, object]], type[Exception]]:
    for name in ("tomllib", "tomli"):
        try:
            reader = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        return cast(Callable[[str], dict[str, object]], reader.loads), reader.TOMLDecodeError
    raise BrokenTomlError(
        "Python 3.10 cannot read TOML by itself. Remedy: pip install tomli, or Python 3.11"
    )


def unknown_keys(table: Mapping[str, object], known: Sequence[str], path: str) -> Iterator[str]:
    """A sentence for each key of a table that nobody reads, with what may have been meant.

    >>> list(unknown_keys({"extern": 1}, ["externs", "native"], "trust"))
    ["trust.extern: there is no such key. Did you mean 'externs'?"]
    """
    for key in table:
        if key not in known:
            similar = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean {similar[0]!r}?" if similar else f"Known are {', '.join(known)}"
            yield f"{path}.{key}: there is no such key. {hint}"


def kind_in_toml(value: object) -> str:
    """What TOML calls a value's type.

    >>> kind_in_toml(True), kind_in_toml({})
    ('a boolean', 'a table')
    """
    names = {bool: "a boolean", int: "an integer", float: "a float", str: "a string"}
    names |= {list: "such an array", dict: "a table"}
    return names.get(type(value), f"a {type(value).__name__}")


def require_type(
    value: object, kinds: type | tuple[type, ...], argument: str, expected: str
) -> None:
    """Check the type of an argument.

    Args:
        value: what was given.
        kinds: what it may be. A bool passes only where bool is among them.
        argument: the argument's name.
        expected: what it should be, for the error.

    Raises:
        TypeError: it is something else.

    >>> require_type(3, str, "text", "a str")
    Traceback (most recent call last):
    TypeError: text must be a str, not int
    """
    allowed = kinds if isinstance(kinds, tuple) else (kinds,)
    is_stray_bool = isinstance(value, bool) and bool not in allowed and object not in allowed
    if is_stray_bool or not isinstance(value, allowed):
        raise TypeError(f"{argument} must be {expected}, not {type(value).__name__}")
