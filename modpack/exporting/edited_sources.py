"""Interned modules whose files changed after this process imported them.

In a notebook or a long session, the file of an imported module may change. The live object follows
the old file, and the package follows the new one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

from modpack.core.graph import CodeKind
from modpack.core.plan import Plan
from modpack.core.rules import Action
from modpack.diagnostics import Diagnostic
from modpack.discovery.walk import Walker
from modpack.environment.finder import is_a
from modpack.errors import listed
from modpack.exporting.live_code import (
    absolute_file,
    namespace_of_file,
    nested_codes,
    unwrap_functions,
)
from modpack.saving.function_source import same_code

_FIRST_IMPORTED: Final = time.time()
_MARGIN: Final = 1.0  # seconds: file systems have coarser or remote clocks
_MAX_FUNCTIONS: Final = 3


def edited_notes(plan: Plan, walker: Walker) -> Iterator[Diagnostic]:
    """Yield a note for each interned module whose file changed after this process imported it.

    Args:
        plan: The plan, with the interned modules.
        walker: The walk, which has the sources.
    """
    for module in plan.modules(Action.INTERN):
        location = plan.decisions[module].location
        if location is None or location.file is None or location.kind is not CodeKind.SOURCE:
            continue
        file, live = location.file, namespace_of_file(sys.modules.get(location.module), location)
        # Other loaders may compile something else than the file.
        has_source_loader = type(live.get("__loader__")) is SourceFileLoader
        if not has_source_loader or live.get("__file__") != file or not _may_be_edited(file):
            continue
        found = _difference(live, walker.source(module), file)
        if found is not None:
            difference, line = found
            text = (
                f"{module} was modified after this process imported it: {difference}; the package "
                "contains the current file"
            )
            hint = "Restart the process, or reload the module and recreate the object."
            yield Diagnostic.from_code("source-modified", module, text, f"{file}:{line}", hint=hint)


def _may_be_edited(file: str) -> bool:
    """Return whether a file has changed since this process started."""
    try:
        status = os.stat(file)  # noqa: PTH116  # of thousands of modules, at times
    except OSError:
        return False
    # A copy may keep the old mtime, but never the ctime.
    return max(status.st_mtime, status.st_ctime) >= _process_start() - _MARGIN


def _difference(live: Mapping[str, object], source: bytes, file: str) -> tuple[str, int] | None:
    """Return how the code of a live module differs from its source, and on which line.

    Functions and methods are compared with the compiled source. The values that other code computes
    are compared by the self-test (``module-state``).

    Returns:
        None if no difference is found, or if the source cannot be compiled, which is reported
        elsewhere.
    """
    try:
        compiled = compile(source, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return None
    codes: dict[str, list[CodeType]] = {}
    for code in nested_codes(compiled):
        codes.setdefault(code.co_name, []).append(code)
    others: dict[str, int] = {}
    for function in _functions_of(live, file):
        like = codes.get(function.__code__.co_name, [])
        if not any(same_code(code, function.__code__) for code in like):
            others.setdefault(function.__qualname__, like[0].co_firstlineno if like else 1)
    if not others:
        return None
    verb = "has" if len(others) == 1 else "have"
    return f"{listed(others, _MAX_FUNCTIONS)} {verb} changed", next(iter(others.values()))


@cache
def _process_start() -> float:
    """Return the start time of this process, in seconds since the epoch.

    On systems that do not report it, this is the time of the first use of modpack.
    """
    try:
        # The program's name may contain spaces and parentheses: split only what follows it.
        facts = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        ticks = int(facts[19])  # proc_pid_stat(5): field 22, counted behind the program's name
        running = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, IndexError, ValueError):
        return _FIRST_IMPORTED
    return min(time.time() - running, _FIRST_IMPORTED)


def _functions_of(live: Mapping[str, object], file: str) -> Iterator[FunctionType]:
    """Yield the functions that a file defines, in the namespaces of its module and classes."""
    here = absolute_file(file)
    todo: list[Any] = list(live.values())
    seen: set[int] = set()
    for value in todo:  # grows during the loop
        if id(value) in seen:
            continue
        seen.add(id(value))
        if not is_a(value, type):
            found = unwrap_functions(value)
            yield from (each for each in found if absolute_file(each.__code__.co_filename) == here)
        elif vars(value).get("__module__") == live.get("__name__"):
            todo += vars(value).values()
