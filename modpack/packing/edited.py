"""Modules that were edited after this process imported them: what runs is not what is packaged.

A notebook, or a session of days, imports a module once; its file goes on changing. The live object
does what the file said then, and the package would do what it says now.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from modpack.core.actions import Action
from modpack.core.location import CodeKind, Location
from modpack.core.plan import Note, NoteKind, Plan
from modpack.discovery.walk import Walker
from modpack.resolution.live import contents_of

if TYPE_CHECKING:
    from modpack.packing.editedcode import Difference

__all__ = ["edited_notes", "is_awake"]

_FIRST_IMPORTED: Final = time.time()
_MARGIN: Final = 1.0  # seconds: clocks of file systems are coarser, and some are elsewhere
_NEVER: Final = (0, 0, 0)
_unedited: dict[str, tuple[int, int, int]] = {}
"""Files that said what was imported, with their last change: reloaded, they say the same."""


def edited_notes(plan: Plan, walker: Walker) -> Iterator[Note]:
    """A note for each interned module that does here what its source does not say.

    A file that is older than this process says what was imported. The code of any other is
    compiled, and compared with that of the live functions.

    Args:
        plan: which modules are interned, and where they are.
        walker: has their sources.
    """
    for module in plan.modules(Action.INTERN):
        location = plan.decisions[module].location
        if location is None or location.file is None:
            continue
        live = _imported_from(location)
        change = _last_change(location.file) if live else _NEVER
        if _is_old(change) or _unedited.get(location.file) == change:
            continue
        from modpack.packing.editedcode import difference  # seldom needed

        found = difference(live, walker.source(module), location.file)
        if found is not None:
            yield _note(module, location.file, found)
        else:
            _unedited[location.file] = change


def _imported_from(location: Location) -> Mapping[str, object]:
    """What the module holds that Python itself imported from a place; nothing if it did not.

    Other loaders may compile something else than what the file says.
    """
    module = sys.modules.get(location.module)
    if location.kind is not CodeKind.SOURCE or not is_awake(module):
        return {}
    live = contents_of(module)
    is_plain = type(live.get("__loader__")) is SourceFileLoader
    return live if is_plain and live.get("__file__") == location.file else {}


def is_awake(module: object) -> bool:
    """Whether a module was really loaded, or waits for the first question, as LazyLoader's do."""
    kind = type(module)
    return issubclass(kind, ModuleType) and kind.__getattribute__ is ModuleType.__getattribute__


def _last_change(file: str) -> tuple[int, int, int]:
    """When a file was written to, and when its facts changed, in nanoseconds; and its bytes."""
    try:
        status = os.stat(file)  # noqa: PTH116  # of thousands of modules, at times
    except OSError:
        return _NEVER
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _is_old(change: tuple[int, int, int]) -> bool:
    """Whether a file has not changed since this process began."""
    return max(change[:2]) < (_process_start() - _MARGIN) * 1e9


@cache
def _process_start() -> float:
    """When this process began, in seconds since the epoch.

    Where the system does not tell, it is when modpack was first used, which is a little later.
    """
    try:
        facts = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        ticks = int(facts[19])  # proc_pid_stat(5): field 22, counted behind the program's name
        running = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, IndexError, ValueError):
        return _FIRST_IMPORTED
    return min(time.time() - running, _FIRST_IMPORTED)


def _note(module: str, file: str, found: Difference) -> Note:
    text = (
        f"{module} was edited after it was imported here: {found.what}. The package takes "
        "the file as it is now. Start anew, or reload the module and make the object again, for "
        "both to be the same"
    )
    return Note(NoteKind.SOURCE_EDITED, module, text, f"{file}:{found.line}")
