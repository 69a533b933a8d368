"""Licence expressions, as far as a gate must understand them."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

__all__ = ["is_licensed_under", "licences_in"]

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:-]*")
_OPERATORS = frozenset({"and", "or", "with"})


def licences_in(expression: str) -> tuple[str, ...]:
    """The licences and exceptions that an expression names, and the expression itself.

    Whatever metadata says that is no SPDX expression is taken apart at blanks and brackets as
    well, so that ``GNU General Public License (GPLv3)`` names ``GPLv3``.

    >>> licences_in("MIT OR (GPL-2.0-only WITH Classpath-exception-2.0)")
    ('MIT OR (GPL-2.0-only WITH Classpath-exception-2.0)', 'MIT', 'GPL-2.0-only', \
'Classpath-exception-2.0')
    """
    words = (word for word in _WORD.findall(expression) if word.lower() not in _OPERATORS)
    return tuple(dict.fromkeys((expression, *words)))


def is_licensed_under(expression: str, glob: str) -> bool:
    """Whether a glob matches one of the licences of an expression; case does not count.

    >>> is_licensed_under("MIT OR GPL-3.0-only", "gpl*")
    True
    >>> is_licensed_under("LGPL-2.1-only", "GPL*")
    False
    """
    wanted = glob.casefold()
    return any(fnmatchcase(each.casefold(), wanted) for each in licences_in(expression))
