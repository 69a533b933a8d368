"""Patterns over module paths and file paths.

``*`` stays within one component, ``**`` stands for any number of whole components, none
included. The notation is torch.package's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

__all__ = ["GlobGroup", "GlobPattern"]

GlobPattern = str | Iterable[str]
"""One pattern, or several of which any may match."""


class GlobGroup:
    """A set of patterns: matches what an include pattern matches and no exclude pattern does.

    Args:
        include: one pattern or several; of an empty list, nothing matches.
        exclude: one pattern or several; none by default.
        separator: what parts components: ``"."`` for module paths, ``"/"`` for files.

    Raises:
        TypeError: a pattern is no string.
        ValueError: a pattern has an empty component, or ``**`` is only a part of one.

    >>> group = GlobGroup("mylib.**", exclude="mylib.tests.**")
    >>> group.matches("mylib"), group.matches("mylib.net.conv"), group.matches("mylib.tests.t1")
    (True, True, False)
    >>> GlobGroup("mylib.*").matches("mylib.net.conv")
    False
    """

    def __init__(
        self, include: GlobPattern, *, exclude: GlobPattern = (), separator: str = "."
    ) -> None:
        self.separator = separator
        self.include = _patterns(include, "include", separator)
        self.exclude = _patterns(exclude, "exclude", separator)

    @cached_property
    def _included(self) -> re.Pattern[str] | None:
        """Compiled when it is needed: whoever reads a plan matches nothing."""
        return _compiled(self.include, self.separator)

    @cached_property
    def _excluded(self) -> re.Pattern[str] | None:
        return _compiled(self.exclude, self.separator)

    def matches(self, candidate: str) -> bool:
        """Whether the group matches a whole module path or file path."""
        text = self.separator + candidate
        if not (self._included and self._included.fullmatch(text)):
            return False
        return not (self._excluded and self._excluded.fullmatch(text))

    def literally(self, root: str) -> GlobGroup:
        """The group with only those include patterns that have ``root`` as first component.

        >>> GlobGroup(["torch.**", "**"]).literally("torch")
        GlobGroup('torch.**')
        """
        literal = [p for p in self.include if p.partition(self.separator)[0] == root]
        return GlobGroup(literal, exclude=self.exclude, separator=self.separator)

    def spells(self, candidate: str) -> bool:
        """Whether it matches by a pattern that has the first component literally.

        >>> GlobGroup("torch.**").spells("torch.nn"), GlobGroup("**").spells("torch.nn")
        (True, False)
        """
        root = candidate.partition(self.separator)[0]
        return self.matches(candidate) and self.literally(root).matches(candidate)

    def __str__(self) -> str:
        shown = _shown(self.include)
        return f"{shown}, exclude={_shown(self.exclude)}" if self.exclude else shown

    def __repr__(self) -> str:
        return f"GlobGroup({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GlobGroup) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        return (self.separator, self.include, self.exclude)


def _shown(patterns: tuple[str, ...]) -> str:
    if len(patterns) == 1:
        return repr(patterns[0])
    return "[" + ", ".join(map(repr, patterns)) + "]"


def _patterns(given: GlobPattern, argument: str, separator: str) -> tuple[str, ...]:
    patterns: list[object] = [given] if isinstance(given, str) else _listed(given, argument)
    return tuple(_checked(pattern, argument, separator) for pattern in patterns)


def _listed(given: object, argument: str) -> list[object]:
    if isinstance(given, (bytes, bytearray)) or not isinstance(given, Iterable):
        raise TypeError(
            f"{argument} must be a pattern or several patterns, not {type(given).__name__}"
        )
    return list(given)


def _checked(pattern: object, argument: str, separator: str) -> str:
    if not isinstance(pattern, str):
        raise TypeError(f"{argument} must hold patterns (str), not {type(pattern).__name__}")
    for component in pattern.split(separator):
        if not component:
            raise ValueError(f"{argument}: the pattern {pattern!r} has an empty component")
        if "**" in component and component != "**":
            raise ValueError(
                f"{argument}: in the pattern {pattern!r}, '**' must be a whole component"
            )
    return pattern


def _compiled(patterns: Sequence[str], separator: str) -> re.Pattern[str] | None:
    """One expression for all patterns, over candidates that start with a separator."""
    if not patterns:
        return None
    mark, rest = re.escape(separator), f"[^{re.escape(separator)}]"

    def component(text: str) -> str:
        if text == "**":
            return f"(?:{mark}{rest}+)*"
        return mark + f"{rest}*".join(map(re.escape, text.split("*")))

    each = ("".join(map(component, pattern.split(separator))) for pattern in patterns)
    return re.compile("|".join(f"(?:{expression})" for expression in each))
