"""What a user allows to go into a package although it looks like a secret."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from modpack.core.globs import GlobGroup, GlobPattern

__all__ = ["Allowance", "as_allowances"]

_FINGERPRINT = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True)
class Allowance:
    """Where something may be that looks like a secret.

    Attributes:
        where: a pattern of module paths, or, with a ``/`` in it, of records.
        fingerprint: of the only text that may be there; None for any.

    >>> Allowance("shop.*", None).admits("shop.till", "0" * 12)
    True
    """

    where: str
    fingerprint: str | None

    def admits(self, place: str, fingerprint: str) -> bool:
        """Whether a text may be in a module or a record."""
        if self.fingerprint not in (None, fingerprint):
            return False
        if self.where == "**":
            return True
        separator = "/" if "/" in self.where else "."
        if separator == "." and "/" in place:
            return False  # a pattern of modules, whose * would match a whole path
        return GlobGroup(self.where, separator=separator).matches(place)


def as_allowances(given: GlobPattern, argument: str = "allow_secrets") -> tuple[Allowance, ...]:
    """Allowances as a user writes them: ``PATTERN``, or ``PATTERN#FINGERPRINT``.

    Args:
        given: one or several.
        argument: what to call them in errors.

    Raises:
        TypeError, ValueError: it is none.

    >>> as_allowances("shop.till#0123456789ab")
    (Allowance(where='shop.till', fingerprint='0123456789ab'),)
    """
    listed: object = [given] if isinstance(given, str) else given
    if isinstance(listed, (bytes, bytearray)) or not isinstance(listed, Iterable):
        kind = type(given).__name__
        raise TypeError(f"{argument} must be a pattern or several patterns, not {kind}")
    return tuple(_allowance(each, argument) for each in listed)


def _allowance(given: object, argument: str) -> Allowance:
    if not isinstance(given, str):
        raise TypeError(f"{argument} must hold patterns (str), not {type(given).__name__}")
    where, mark, fingerprint = given.partition("#")
    if mark and not _FINGERPRINT.fullmatch(fingerprint):
        raise ValueError(
            f"{argument}: in {given!r}, what follows # must be a fingerprint: 12 hex digits, as "
            "the message about the secret shows them"
        )
    try:
        GlobGroup(where, separator="/" if "/" in where else ".")
    except ValueError as failure:
        raise ValueError(f"{argument}: {str(failure).removeprefix('include: ')}") from failure
    return Allowance(where, fingerprint or None)
