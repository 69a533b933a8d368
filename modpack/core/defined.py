"""What a source defines, as values: to be compared with what a process holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple, TypeAlias

__all__ = ["Body", "Defined", "Initializer", "Literal", "Row", "Setting"]

Literal: TypeAlias = "bool | int | float | str | list[str] | None"
"""A value as a source spells it: itself; in a list the text of one that JSON does not have; and
an empty list where the source alone does not tell."""

Row: TypeAlias = "tuple[int, str, Sequence[Literal], Mapping[str, Literal]]"
"""How one statement binds a name: its line, one of the kinds below, and what belongs to it.

``def`` and ``class``: the decorators, dotted; behind an empty name that of the function. ``is``:
the value. ``holds``: the value, a container that code may add to. ``call``: the dotted name of what
is called, then the arguments, those with names apart.
"""


class Setting(IntEnum):
    """When a module's own code sets a name anew that is defined already."""

    AT_IMPORT = 0
    """While it is imported."""
    RUNNING = 1
    """In functions that it calls itself, or in methods: state of its own."""
    ON_REQUEST = 2
    """In functions that others call for that: ``def set_flag(value): global FLAG; ...``."""


class Body(NamedTuple):
    """What a module, or a class in it, binds.

    Attributes:
        line: of a class statement; 0 for a module.
        decorators: its decorators, dotted; ``""`` for one that is no dotted name.
        functions: by name the line of each function that nothing decorates or binds again.
        values: by name the line and the literal that nothing binds again.
        others: by name, in order, all ways in which any other name is bound that can be read off.
        unread: the other names.
        conditional: the names that only statements in blocks bind: they may be absent.
    """

    line: int
    decorators: Sequence[str]
    functions: Mapping[str, int]
    values: Mapping[str, tuple[int, Literal]]
    others: Mapping[str, Sequence[Row]]
    unread: Sequence[str] = ()
    conditional: Sequence[str] = ()


class Initializer(NamedTuple):
    """What calling a class makes of its arguments, where that can be read off.

    Attributes:
        parameters: their names after ``self``, each with its default.
        attributes: by name the parameter that is kept in it, or its literal.
        changed: attributes that methods set later, and when.
    """

    parameters: Sequence[tuple[str, Literal]]
    attributes: Mapping[str, tuple[str, Literal]]
    changed: Mapping[str, int]


@dataclass(frozen=True)
class Defined:
    """What one source defines.

    Attributes:
        bodies: by dotted path the bodies of classes; ``""`` is the module itself.
        settings: names that functions declare ``global`` and set, and, behind a dot, attributes
            of what is no local name: when that happens.
        setters: by function the names that it sets so, itself or by others that it calls; ``*``
            for names that it computes.
        called: the last names of what is called in statements of their own at module level.
        is_dynamic: whether module-level code sets names that the source does not spell.
        initializers: by class, where calling it only keeps arguments and literals.
    """

    bodies: Mapping[str, Body] = field(default_factory=dict)
    settings: Mapping[str, int] = field(default_factory=dict)
    setters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    called: Sequence[str] = ()
    is_dynamic: bool = False
    initializers: Mapping[str, Initializer] = field(default_factory=dict)

    def without_values(self) -> Defined:
        """The same without any value, for a source whose texts must not be kept."""
        bodies = {
            path: body._replace(
                values={},
                others={n: rows for n, rows in body.others.items() if _has_no_value(rows)},
                unread=[*body.unread, *body.values, *body.others],
            )
            for path, body in self.bodies.items()
        }
        return replace(self, bodies=bodies, initializers={})


def _has_no_value(rows: Sequence[Row]) -> bool:
    return all(kind in ("def", "class") for _, kind, _, _ in rows)
