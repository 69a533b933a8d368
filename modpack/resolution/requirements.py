"""Which distributions another one requires here, read from its metadata."""

from __future__ import annotations

import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from modpack.core.names import normalised_distribution as normalised

__all__ = ["required_names"]

_ANOTHER_EXTRA: Final = re.compile(r";.*\bextra\s*==\s*(?:'[^']+'|\"[^\"]+\")")
_OR: Final = re.compile(r"\bor\b")
_BOUND: Final = r"(?:(?:[<>]=?|[=!]=)[ \t]*[0-9]+(?:\.[0-9]+)*|~=[ \t]*[0-9]+(?:\.[0-9]+)+)"
_BOUNDS: Final = rf"{_BOUND}(?:[ \t]*,[ \t]*{_BOUND})*"
_USUAL: Final = re.compile(
    r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
    rf"[ \t]*(?:{_BOUNDS}|\({_BOUNDS}\))?[ \t]*"
    r"(?:;[ \t]*(?:python_version[ \t]*(?P<than>[<>]=?|[=!]=)[ \t]*"
    r"(?P<mark>['\"])3\.(?P<minor>[0-9]{1,4})(?P=mark)"
    r"|(?P<variable>sys_platform|os_name|implementation_name)[ \t]*(?P<is>[=!]=)[ \t]*"
    r"(?P<quote>['\"])(?P<word>[A-Za-z0-9_]+)(?P=quote))[ \t]*)?"
)
"""A name with bounds and at most one condition, as nearly all requirements are: packaging, which
understands all of them, takes 6 ms to import."""
_COMPARED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}
_HERE: Final = {
    "sys_platform": sys.platform,
    "os_name": os.name,
    "implementation_name": sys.implementation.name,
}


def required_names(lines: Iterable[str]) -> frozenset[str]:
    """The normalised names in ``Requires-Dist`` lines that count here, without any extra."""
    return frozenset(name for name in map(_required_by, lines) if name is not None)


@lru_cache(maxsize=4096)
def _required_by(line: str) -> str | None:
    """The distribution that a requirement asks for here; None if it does not count.

    Kept from one export to the next: parsing is most of what it takes to know a distribution.
    """
    if _is_for_an_extra(line):
        return None
    usual = _USUAL.fullmatch(line)
    if usual is not None:
        return normalised(usual[1]) if _holds(usual) else None
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return None  # metadata of an old tool: a requirement that pip ignores as well
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        return normalised(requirement.name)
    return None


def _holds(usual: re.Match[str]) -> bool:
    """Whether the condition of a usual requirement holds here; it does if there is none."""
    if usual["minor"] is not None:
        return bool(_COMPARED[usual["than"]](sys.version_info[:2], (3, int(usual["minor"]))))
    if usual["variable"] is not None:
        return bool(_COMPARED[usual["is"]](_HERE[usual["variable"]], usual["word"]))
    return True


def _is_for_an_extra(line: str) -> bool:
    """Whether a requirement certainly counts for some extra only, as nine of ten do.

    >>> _is_for_an_extra("pytest; python_version > '3' and extra == 'test'")
    True
    """
    return "@" not in line and _ANOTHER_EXTRA.search(line) is not None and not _OR.search(line)
