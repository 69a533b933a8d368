"""Modules that were edited after this process imported them: what runs is not what is packaged.

A notebook, or a session of days, imports a module once; its file goes on changing. The live object
does what the file said then, and the package would do what it says now.

In what the code of a live module differs from its source.
"""

from __future__ import annotations

import marshal
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from modpack.core.graph import CodeKind, Location
from modpack.core.plan import Note, NoteKind, Plan
from modpack.core.rules import Action
from modpack.discovery.finder import is_a
from modpack.discovery.importers import contents_of
from modpack.discovery.walk import Walker
from modpack.exporting.script_proof import codes_in, functions_in, same_file
from modpack.pickling.functions import same_code

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


_SHOWN: Final = 3
_HEADER: Final = 16
"""Bytes before the code in a .pyc: magic number, flags, the source's time and size (PEP 552)."""


@dataclass(frozen=True)
class Difference:
    """How a live module differs from its source.

    Attributes:
        what: a clause that says it.
        line: where in the source, 1-based.
    """

    what: str
    line: int


def difference(live: Mapping[str, object], source: bytes, file: str) -> Difference | None:
    """In what a live module differs from its source.

    Functions, and methods of classes, are compared with what the source compiles to. What stands
    outside of them leaves no code behind in a live module: that is known if the ``.pyc`` is still
    the one of the import.

    Args:
        live: what the module holds.
        source: what its file says now.
        file: its file.

    Returns:
        None if they do the same, as far as can be known, or if the source cannot be compiled,
        which others tell.
    """
    try:
        compiled = compile(source, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return None
    codes: dict[str, list[CodeType]] = {}
    for code in codes_in(compiled):
        codes.setdefault(code.co_name, []).append(code)
    others: dict[str, int] = {}
    for function in _functions_of(live, file):
        like = codes.get(function.__code__.co_name, [])
        if not any(same_code(code, function.__code__) for code in like):
            others.setdefault(function.__qualname__, like[0].co_firstlineno if like else 1)
    if others:
        return Difference(_named(list(others)), next(iter(others.values())))
    before = _code_before(file)
    if before is None or same_code(before, compiled):
        return None
    return Difference("what stands outside of its functions is not what ran", 1)


def _named(names: list[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} does what its source said then"
    more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    *shown, last = names[:_SHOWN] + more
    return f"{', '.join(shown)} and {last} do what their source said then"


def _functions_of(live: Mapping[str, object], file: str) -> Iterator[FunctionType]:
    """The functions that a file defines, as far as its module and their classes hold them."""
    todo: list[Any] = list(live.values())
    seen: set[int] = set()
    for value in todo:  # which grows
        if id(value) in seen:
            continue
        seen.add(id(value))
        if not is_a(value, type):
            found = functions_in(value)
            yield from (each for each in found if same_file(each.__code__.co_filename, file))
        elif vars(value).get("__module__") == live.get("__name__"):
            todo += vars(value).values()


def _code_before(file: str) -> CodeType | None:
    """What a file compiled to when it was last imported; None if that is what it says now.

    None as well where nobody knows: there is no ``.pyc``, or it belongs to another Python.
    """
    try:
        data = Path(cache_from_source(file)).read_bytes()
        status = Path(file).stat()
    except (OSError, NotImplementedError):
        return None
    time_and_size = (int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
    known = int.from_bytes(data[8:12], "little"), int.from_bytes(data[12:16], "little")
    by_time = data[:8] == MAGIC_NUMBER + bytes(4)
    if not by_time or known == time_and_size:
        return None
    try:
        code = marshal.loads(data[_HEADER:])
    except (EOFError, ValueError, TypeError):
        return None
    return code if isinstance(code, CodeType) else None
