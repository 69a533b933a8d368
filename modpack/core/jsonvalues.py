"""Values of a JSON document, each checked to be of the kind that it has to be.

Records may come from anywhere. A wrong kind is a TypeError that says what was expected; whoever
reads the record tells it with the record's name.
"""

from __future__ import annotations

from modpack.core.planjson import Json

__all__ = ["as_list", "as_mapping", "as_number", "as_optional_text", "as_text", "as_truth"]


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
