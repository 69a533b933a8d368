"""Checks of public arguments: a wrong type is a TypeError that names the argument."""

from __future__ import annotations

__all__ = ["require_type"]


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
