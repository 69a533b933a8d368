"""Plain data: values, containers, and objects that are nothing but their attributes.

The C pickler asks for a persistent id for each object that it meets, if there is anybody to be
asked: a state of 200,000 small entries has two million objects, and in plain data none of them has
one. So saving begins with a pickler that does not ask, which takes half the time. It gives up at
the first object that is not plain. Until then no code but pickle's own has run, so the other
pickler can begin anew.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, Final

__all__ = ["CONTAINERS_AND_VALUES", "PROTOCOLS", "PlainPickler", "plain_pickle"]

CONTAINERS_AND_VALUES: Final = (dict, list, tuple, str, bytes, int, float, bool, type(None))
"""Types that pickle writes without asking anybody but for a persistent id."""

PROTOCOLS: Final = frozenset({2, 3})
"""In these pickle names the type of a set. In later ones it writes sets without asking anybody, in
an order that is not the same in every process."""


class _NotPlainError(Exception):
    """Something has to be looked at by the other pickler."""


class PlainPickler(pickle.Pickler):
    """The C pickler, until it meets anything that is not plain.

    Args:
        buffer: where to write.
        protocol: the pickle protocol, one of :data:`PROTOCOLS`.
        is_plain: of a type, and the first object of it, whether pickle may write its objects alone.
        is_found: whether a class is found by the name that it gives itself.
    """

    def __init__(
        self,
        buffer: io.BytesIO,
        protocol: int,
        is_plain: Callable[[type, Any], bool],
        is_found: Callable[[type], bool],
    ) -> None:
        super().__init__(buffer, protocol, fix_imports=False)
        self._is_plain = is_plain
        self._is_found = is_found
        self._known: set[type] = set()

    def reducer_override(self, obj: Any) -> Any:
        """Leave the object to pickle."""
        kind = type(obj)
        if kind not in self._known:
            if issubclass(kind, type):
                if obj is set or obj is frozenset or not self._is_found(obj):
                    raise _NotPlainError
            elif self._is_plain(kind, obj):
                self._known.add(kind)
            else:
                raise _NotPlainError
        return NotImplemented


def plain_pickle(
    obj: object,
    protocol: int,
    is_plain: Callable[[type, Any], bool],
    is_found: Callable[[type], bool],
) -> bytes | None:
    """The pickle of plain data; None if an object is anything else, or cannot be pickled.

    See :class:`PlainPickler` for the arguments.
    """
    buffer = io.BytesIO()
    try:
        PlainPickler(buffer, protocol, is_plain, is_found).dump(obj)
    except Exception:  # whatever it is, the other pickler meets it too, and tells of it
        return None
    return buffer.getvalue()
