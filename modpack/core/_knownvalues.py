"""Classes of the standard library whose instances are values: data for the list of known names.

Their methods compute with the value itself, or change it; none opens anything, or calls what it is
given with arguments of its own choice but for the functions that ``sort`` and the like compare by.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["is_method_of_value"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DATES = _names("date datetime time timedelta timezone")
_CLASSES: Final[Mapping[str, frozenset[str]]] = {
    "_datetime": _DATES,
    "_struct": _names("Struct"),
    "builtins": _names(
        "bool bytearray bytes complex dict float frozenset int list memoryview range set slice str"
        " tuple"
    ),
    "collections": _names(
        "ChainMap Counter OrderedDict UserDict UserList UserString defaultdict deque"
    ),
    "datetime": _DATES,
    "decimal": _names("Context Decimal"),
    "fractions": _names("Fraction"),
    "ipaddress": _names(
        "IPv4Address IPv4Interface IPv4Network IPv6Address IPv6Interface IPv6Network"
    ),
    "re": _names("Match Pattern _compile"),
    "statistics": _names("NormalDist"),
    "string": _names("Template"),
    "textwrap": _names("TextWrapper"),
    "uuid": _names("UUID"),
}
_METHOD: Final = re.compile(r"[a-z]\w*|__(?:contains|eq|getitem|len)__", re.ASCII)


def is_method_of_value(module: str, name: str) -> bool:
    """Whether it is a method of a class whose instances are values.

    >>> is_method_of_value("decimal", "Decimal.sqrt"), is_method_of_value("pathlib", "Path.unlink")
    (True, False)
    """
    kind, _, method = name.partition(".")
    return kind in _CLASSES.get(module, ()) and _METHOD.fullmatch(method) is not None
