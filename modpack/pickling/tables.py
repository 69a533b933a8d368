"""All tables of special objects, and what is reduced by them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from modpack.pickling import remade
from modpack.pickling.refused import REFUSED, refuse
from modpack.pickling.rows import Packaged, Refusal, Row, Rows, Surroundings
from modpack.pickling.substitutes import STANDARD, STREAMS
from modpack.pickling.threadobjects import THREADS
from modpack.pickling.torchobjects import TORCH
from modpack.pickling.weak import WEAK

__all__ = [
    "ALL_ROWS",
    "ROWS",
    "is_empty",
    "is_kind_of_stream",
    "reduce_constant",
    "reduce_stream",
    "reduced_by",
]

ALL_ROWS: tuple[Row, ...] = (*THREADS, *WEAK, *STANDARD, *TORCH, *REFUSED)
"""Every row, in the order of the documentation."""

ROWS = Rows(ALL_ROWS)
"""Finds the row of a type."""


def reduced_by(row: Row, obj: Any, around: Surroundings, plain: Callable[[Any], Any]) -> Any:
    """Reduce an object as its row tells.

    Args:
        row: the row of its type.
        obj: the object.
        around: the graph that it is saved in.
        plain: reduces it as pickle does, for rows that leave it to that.

    Raises:
        RefusedError: it means nothing outside of this process.
    """
    if row.by_name and (named := _by_name(obj, around)) is not None:
        return named
    if isinstance(row, Refusal):
        return refuse(row, obj)
    if row.reduce is None:
        return plain(obj)
    reduced = row.reduce(obj, around)
    return (remade.the_same, (reduced,)) if isinstance(reduced, Packaged) else reduced


def reduce_constant(obj: Any, reduced: Any, around: Surroundings) -> Any:
    """Reduce an object without any state to its name, if a module holds it under one."""
    return (_by_name(obj, around) if is_empty(reduced) else None) or reduced


def is_empty(reduced: Any) -> bool:
    """Whether a reduction tells of a class only, and of nothing that its object holds."""
    if not isinstance(reduced, tuple) or len(reduced) < 2 or len(reduced[1]) != 1:
        return False
    return reduced[0].__name__ == "__newobj__" and not any(reduced[2:])


def _by_name(obj: Any, around: Surroundings) -> Any:
    held = around.held_by_module(obj)
    return None if held is None else (getattr, held)


def reduce_stream(obj: object) -> Any:
    """Reduce a standard stream of this process to its name; None for any other object."""
    for name in STREAMS:
        stream = getattr(sys, name, None)
        if stream is not None and obj is stream:
            return remade.standard_stream, (name, False)
        if stream is not None and obj is getattr(stream, "buffer", None):
            return remade.standard_stream, (name, True)
    return None


def is_kind_of_stream(kind: type) -> bool:
    """Whether one of the standard streams is of a type."""
    streams = [getattr(sys, name, None) for name in STREAMS]
    return any(kind in (type(s), type(getattr(s, "buffer", None))) for s in streams if s)
