"""Locations that may contain a possible secret, as the user allows them."""

from __future__ import annotations

import re
from typing import NamedTuple

from modpack.core.names import GlobGroup, GlobPattern, check_pattern, list_patterns


class Allowance(NamedTuple):
    """A location that may contain a possible secret.

    Attributes:
        where: Pattern of module paths; of records if it contains ``/``.
        fingerprint: Fingerprint of the only allowed text; None allows any text.

    >>> Allowance("shop.*", None).admits("shop.till", "0" * 12)
    True
    """

    where: str
    fingerprint: str | None

    def admits(self, location: str, fingerprint: str) -> bool:
        """Return whether a module or a record may contain a text with this fingerprint."""
        if self.fingerprint not in (None, fingerprint):
            return False
        if self.where == "**":
            return True
        separator = "/" if "/" in self.where else "."
        if separator == "." and "/" in location:
            return False  # the * of a module pattern would match a whole path
        return GlobGroup(self.where, separator=separator).matches(location)


def as_allowances(given: GlobPattern, argument: str = "allow_secrets_in") -> tuple[Allowance, ...]:
    """Parse allowances: ``PATTERN``, or ``PATTERN#FINGERPRINT``.

    Args:
        given: One allowance or several.
        argument: Name of the argument, for errors.

    Raises:
        TypeError: If an allowance is not a string.
        ValueError: If an allowance is not valid.

    >>> as_allowances("shop.till#0123456789ab")
    (Allowance(where='shop.till', fingerprint='0123456789ab'),)
    """
    return tuple(_allowance(each, argument) for each in list_patterns(given, argument))


def _allowance(given: object, argument: str) -> Allowance:
    if not isinstance(given, str):
        raise TypeError(f"{argument} must contain patterns (str), not {type(given).__name__}")
    where, mark, fingerprint = given.partition("#")
    if mark and not re.fullmatch("[0-9a-f]{12}", fingerprint):
        raise ValueError(
            f"{argument}: the text after # in {given!r} must be a fingerprint of 12 hex digits, as "
            "shown in the error about the secret"
        )
    return Allowance(
        check_pattern(where, argument, "/" if "/" in where else "."), fingerprint or None
    )
