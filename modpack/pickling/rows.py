"""What the tables of special objects are made of.

A row is for one kind of object that plain pickle refuses, or gets wrong without a word. It
tells how to reduce such an object where there is one right meaning, or why there is none and
what to do about it.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from modpack.errors import ModpackError

__all__ = [
    "BY_NAME",
    "LEAVE_OUT",
    "Kind",
    "Packaged",
    "Refusal",
    "RefusedError",
    "Row",
    "Rows",
    "Substitute",
    "Surroundings",
]

LEAVE_OUT = (
    "let the object that holds it leave it out (__getstate__) and make it anew when it is used"
)
"""What can be done about any object that cannot be saved."""

BY_NAME = "its name, if a module of the model holds it; else "
"""How what is saved begins, in rows that look for a name first."""

Kind = type | str
"""A type, or the dotted path of one that need not be imported to be known."""


class RefusedError(ModpackError):
    """An object has no meaning outside of this process."""


class Surroundings(Protocol):
    """What a row may ask about the graph that an object is saved in."""

    def keeps(self, obj: object) -> bool:
        """Whether an object will be alive after loading, without a weak reference to it."""

    def ordered(self, members: Collection[Any]) -> list[Any] | None:
        """Members of a set in the order of every process; None if they are in it already."""

    def held_by_module(self, obj: object) -> tuple[ModuleType, str] | None:
        """The module that holds this very object, if it is needed anyway, and the name."""

    def named(self, obj: object) -> Any:
        """The reduction of an object that is found under its own name; None if it is not."""

    def attach(self, data: bytes) -> str:
        """Store bytes in a record of their own; returns its name."""


@dataclass(frozen=True)
class Packaged:
    """Stands for ``function(package, *arguments)``, which is called while a package is loaded."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Substitute:
    """A kind of object that has one right meaning elsewhere.

    Attributes:
        what: what users call such objects.
        kinds: their types.
        saved: what is saved of one.
        back: what comes back.
        reduce: its reduction (see :meth:`object.__reduce__`), or a :class:`Packaged`, or None
            to leave it to pickle; may raise :class:`RefusedError`.
        subclasses: whether derived types are reduced alike, unless they have a reduction of
            their own.
        by_name: whether one that a module holds under a name is saved by that name.
    """

    what: str
    kinds: tuple[Kind, ...]
    saved: str
    back: str
    reduce: Callable[[Any, Surroundings], Any] | None = None
    subclasses: bool = False
    by_name: bool = False


@dataclass(frozen=True)
class Refusal:
    """A kind of object that means nothing elsewhere.

    Attributes:
        what: what users call one, with an article.
        kinds: their types; those derived from them are refused as well.
        why: why it cannot be saved.
        remedy: what to do instead.
        by_name: whether one that a module holds under a name is saved by that name.
        mixin: whether derived types are refused even if they have a reduction of their own, since
            that comes from a class that knows nothing of this one.
    """

    what: str
    kinds: tuple[Kind, ...]
    why: str
    remedy: str
    by_name: bool = True
    mixin: bool = False


Row = Substitute | Refusal


class Rows:
    """Finds the row of a type."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._by_kind: dict[Kind, Row] = {kind: row for row in rows for kind in row.kinds}
        self._abstract: list[tuple[type, Row]] = [
            (kind, row) for kind, row in self._by_kind.items() if isinstance(kind, abc.ABCMeta)
        ]

    def of(self, kind: type) -> Row | None:
        """The row of a type: its own, or one of a base that holds for derived types as well."""
        for base in type.mro(kind):
            row = self._by_kind.get(base) or self._by_kind.get(_dotted(base))
            if row is not None and (base is kind or _holds_for(row, kind, base)):
                return row
        return self._of_abstract_base(kind)

    def _of_abstract_base(self, kind: type) -> Row | None:
        """The row of an abstract class that says of itself what is derived from it."""
        return next((row for base, row in self._abstract if issubclass(kind, base)), None)


def _dotted(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _holds_for(row: Row, kind: type, base: type) -> bool:
    if isinstance(row, Substitute) and not row.subclasses:
        return False
    if isinstance(row, Refusal) and row.mixin:
        return True
    return all(_same(kind, base, name) for name in ("__reduce__", "__reduce_ex__", "__getstate__"))


def _same(kind: type, base: type, name: str) -> bool:
    return getattr(kind, name, None) is getattr(base, name, None)
