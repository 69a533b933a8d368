"""Values of a JSON document, each checked to be of the kind that it has to be.

Records may come from anywhere. A wrong kind is a TypeError that says what was expected; whoever
reads the record tells it with the record's name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, NoReturn, cast

from modpack.core.planjson import Json

__all__ = [
    "as_list",
    "as_mapping",
    "as_number",
    "as_optional_text",
    "as_text",
    "as_truth",
    "parse_json",
]

_Pairs = list[tuple[str, object]]
_BYTES_OF: Final = ((b"[", 100), (b"{", 100), (b",", 40), (b":", 60))
"""What each of these signs costs in memory at most, as what Python makes of it."""
_PAIR_BYTES: Final = 120
"""What a key and its value cost besides while they are a pair."""


def parse_json(
    content: bytes, most_bytes: int, pairs_hook: Callable[[_Pairs], object] | None = None
) -> Json:
    """The values of a JSON document, in UTF-8 and without NaN or infinities (RFC 8259).

    Args:
        content: the document.
        most_bytes: how many bytes of memory its values may take; estimated before any is made.
        pairs_hook: makes each object of its keys and values; see :func:`json.loads`.

    Raises:
        ValueError: it is no such document, it is nested too deeply for Python, or it would take
            more memory.

    >>> parse_json(b'{"a": [1, null]}', 10_000)
    {'a': [1, None]}
    """
    text = content.decode("utf-8")
    needed = sum(content.count(sign) * cost for sign, cost in _BYTES_OF)
    needed += content.count(b":") * _PAIR_BYTES if pairs_hook is not None else 0
    if needed > most_bytes:
        raise ValueError(f"it would take {needed} bytes of memory, and {most_bytes} are allowed")
    try:
        parsed = json.loads(text, object_pairs_hook=pairs_hook, parse_constant=_refuse_constant)
    except RecursionError as failure:
        raise ValueError("it is nested too deeply") from failure
    return cast(Json, parsed)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it has {name}, which is no JSON")


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
