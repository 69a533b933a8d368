"""Making many objects at once without being searched for cycles meanwhile."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collection_allowed", "collection_paused"]

_lock = threading.Lock()
_pausing: list[int] = []
"""The threads that want a pause right now, each as often as it does."""
_is_due = False
"""Whether the end of the last pause starts the search again; somebody else may have stopped it."""


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause Python's search for cyclic garbage in this process.

    A syntax tree, or a model that is loaded, is a hundred thousand objects without a cycle. While
    it grows, the collector goes through it, and through all that torch has made, again and again:
    one search of everything takes 80 ms once torch is imported, and parsing takes twice as long.
    For work that leaves few cycles behind. Pauses may lie within each other, and in many threads.

    >>> with collection_paused():
    ...     gc.isenabled()
    False
    """
    _pause(1)
    try:
        yield
    finally:
        _pay_debt(1)
        _resume(1)


@contextmanager
def collection_allowed() -> Iterator[None]:
    """Lift the pauses of this thread for a while: for code that may run long, or set it itself."""
    own = _pausing.count(threading.get_ident())
    _pay_debt(own)
    _resume(own)
    try:
        yield
    finally:
        _pause(own)


def _pause(times: int) -> None:
    global _is_due
    with _lock:
        if times and not _pausing:
            _is_due = gc.isenabled()
            gc.disable()
        _pausing.extend([threading.get_ident()] * times)


def _pay_debt(ending: int) -> None:
    """Search what is new before the last pause ends.

    Otherwise the next object that anybody makes starts a search, and often one of far more than
    what is new here: 1 ms of the 3 ms in which a small package is loaded.
    """
    is_last = 0 < ending == len(_pausing)
    if is_last and _is_due and gc.get_count()[0] > gc.get_threshold()[0] > 0:
        gc.collect(0)  # not under the lock: finalizers run, and may do anything


def _resume(times: int) -> None:
    with _lock:
        for _ in range(times):
            _pausing.remove(threading.get_ident())
        if times and not _pausing and _is_due:
            gc.enable()


def _keep_own_pauses() -> None:
    """A forked child has none of the other threads: nobody would end their pauses."""
    global _lock
    _lock = threading.Lock()
    others = [thread for thread in _pausing if thread != threading.get_ident()]
    for thread in others:
        _pausing.remove(thread)
    if others and not _pausing and _is_due:
        gc.enable()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_keep_own_pauses)
