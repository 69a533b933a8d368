"""Searching for cyclic garbage less often while modules are imported."""

from __future__ import annotations

import gc
import threading

__all__ = ["begin_collecting_rarely", "end_collecting_rarely"]

_FACTOR = 10

_lock = threading.Lock()
_importing: set[int] = set()
_usual = (0, 0, 0)


def begin_collecting_rarely(importing: object) -> None:
    """Have Python look for cyclic garbage after ten times as many new objects, until the end.

    Nearly all that an import makes stays: looking for garbage in it takes a fifth of the time in
    which 2,000 compiled modules are imported. The search is not stopped, for modules may do
    anything while they are imported.

    Args:
        importing: whatever imports; of several, the last to end ends it.
    """
    global _usual
    with _lock:
        if not _importing:
            _usual = gc.get_threshold()
            gc.set_threshold(_usual[0] * _FACTOR, *_usual[1:])
        _importing.add(id(importing))


def end_collecting_rarely(importing: object) -> None:
    """Search as often as before, unless somebody has said how often since."""
    with _lock:
        _importing.discard(id(importing))
        if not _importing and gc.get_threshold() == (_usual[0] * _FACTOR, *_usual[1:]):
            gc.set_threshold(*_usual)
