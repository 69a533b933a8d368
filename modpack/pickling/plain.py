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

from modpack.pickling.attributes import MADE_BY, METHODS_OF_OBJECTS, is_made_of_attributes

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
        self._protocol = protocol
        self._is_plain = is_plain
        self._is_found = is_found
        self._arguments: dict[type, tuple[type] | None] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Leave the object to pickle, or do what pickle would do, where that is slow."""
        kind = type(obj)
        try:
            arguments = self._arguments[kind]
        except KeyError:
            arguments = self._look_at(kind, obj)
        if arguments is None:
            return NotImplemented
        attributes = obj.__dict__
        return (MADE_BY, arguments, attributes) if attributes else NotImplemented

    @property
    def has_reduced(self) -> bool:
        """Whether objects were reduced here."""
        return any(self._arguments.values())

    def _look_at(self, kind: type, obj: Any) -> tuple[type] | None:
        """From what objects of a type are made that are nothing but their attributes."""
        if issubclass(kind, type):
            if obj is set or obj is frozenset or not self._is_found(obj):
                raise _NotPlainError
            return None
        if not self._is_plain(kind, obj):
            raise _NotPlainError
        self._arguments[kind] = (kind,) if is_made_of_attributes(obj, self._protocol) else None
        return self._arguments[kind]


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
    pickler = PlainPickler(buffer, protocol, is_plain, is_found)
    try:
        pickler.dump(obj)
    except Exception:  # whatever it is, the other pickler meets it too, and tells of it
        return None
    data = buffer.getvalue()
    if pickler.has_reduced and any(name in data for name in METHODS_OF_OBJECTS):
        return None
    return data
