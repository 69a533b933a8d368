"""What takes long says how far it is: to the log, and to whoever listens."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Protocol

_log = logging.getLogger("modpack")


class Unit(Enum):
    """What the progress of a phase is counted in."""

    BYTES = "bytes"
    MODULES = "modules"
    RECORDS = "records"


class Phase:
    """A part of the work that may take long.

    Attributes:
        text: what is being done (``following imports``).
        unit: what is counted; None if nothing is.
        total: how much there is to do, if that is known beforehand.
        done: how much has been done by now.
    """

    __slots__ = ("done", "text", "total", "unit")

    def __init__(self, text: str, unit: Unit | None = None, total: int | None = None) -> None:
        self.text = text
        self.unit = unit
        self.total = total
        self.done = 0

    def advance(self, by: int = 1) -> None:
        """Count what has been done."""
        self.done += by


class Listener(Protocol):
    """Hears of phases; how far one is, it can ask the phase itself at any time."""

    def begin(self, phase: Phase) -> None:
        """A phase begins, within those that have not ended yet."""

    def end(self, phase: Phase) -> None:
        """A phase ends, whether its work succeeded or not."""


_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_innermost: ContextVar[Phase | None] = ContextVar("innermost", default=None)


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Tell a listener of the phases of what runs in the block, in this thread.

    Args:
        listener: hears of them.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def is_heard() -> bool:
    """Whether a listener hears of the phases of this thread already."""
    return _listener.get() is not None


@contextmanager
def phase(
    text: str,
    unit: Unit | None = None,
    total: int | None = None,
    *,
    is_major: bool = False,
) -> Iterator[Phase]:
    """Say that the work in the block may take long.

    The logger ``modpack`` hears when it begins, and when it is done and how long it took.

    Args:
        text: what is being done.
        unit: what is counted, if anything is.
        total: how much there is to do, if that is known.
        is_major: whether it is worth level INFO when it is done, instead of DEBUG.

    Returns:
        The phase, to count what has been done.

    >>> with phase("weighing", Unit.BYTES, total=10) as weighing:
    ...     weighing.advance(4)
    ...     advance(2)
    >>> weighing.done
    6
    """
    entered, listener = Phase(text, unit, total), _listener.get()
    token, started = _innermost.set(entered), time.monotonic()
    _log.debug("%s ...", text)
    if listener is not None:
        listener.begin(entered)
    try:
        yield entered
        level = logging.INFO if is_major else logging.DEBUG
        _log.log(level, "%s: %s", text, _outcome(entered, time.monotonic() - started))
    finally:
        _innermost.reset(token)
        if listener is not None:
            listener.end(entered)


def advance(by: int = 1) -> None:
    """Count what has been done in the innermost phase, for those who do not know it."""
    current = _innermost.get()
    if current is not None:
        current.done += by


def _outcome(ended: Phase, seconds: float) -> str:
    took = f"done in {seconds:.2f} seconds"
    return took if ended.unit is None else f"{ended.done} {ended.unit.value}, {took}"
