"""Differences between live interned modules and their sources.

In a notebook or a long session, the file of an imported module may change. The live object follows
the old file, and the package follows the new one. Code can also replace functions and values of a
module at run time.
"""

from __future__ import annotations

import marshal
import os
import sys
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from modpack.core.graph import CodeKind, Location
from modpack.core.plan import Plan
from modpack.core.rules import Action
from modpack.core.scan import ImportKind, Rebinding
from modpack.diagnostics import Diagnostic
from modpack.discovery.finder import is_a
from modpack.discovery.importers import module_dict
from modpack.discovery.walk import Walker
from modpack.exporting.live_code import absolute_file, is_loaded, nested_codes, unwrap_functions
from modpack.exporting.live_state import LiveModule, SourceMismatch
from modpack.pickling.functions import same_code

_FIRST_IMPORTED: Final = time.time()
_MARGIN: Final = 1.0  # seconds: file systems have coarser or remote clocks
_MAX_DEVIATIONS: Final = 4
_MAX_FUNCTIONS: Final = 3
_HEADER: Final = 16
"""Bytes before the code in a .pyc: magic number, flags, the source's time and size (PEP 552)."""


def live_notes(
    plan: Plan, walker: Walker, saved: Container[tuple[str, str]] = ()
) -> Iterator[Diagnostic]:
    """Yield a note for each interned module that differs from its source in this process.

    A module whose file changed after its import gets only that note. If other code changed the
    module, the package behaves differently from the saved object, which is a warning. State that
    the module's own code changes at run time is an info.

    Args:
        plan: The plan, with the interned modules.
        walker: The walk, which has the sources.
        saved: Modules and attribute paths of functions that are saved with the objects.
    """
    package = _PackageSources(plan, walker)
    changed: list[Diagnostic] = []
    for module, defined in package.defined.items():
        location = plan.decisions[module].location
        live = _running(location) if location is not None else {}
        if not live or location is None:
            continue
        file = location.file
        # Other loaders may compile something else than the file.
        has_source_loader = type(live.get("__loader__")) is SourceFileLoader
        is_compared = has_source_loader and live.get("__file__") == file
        found = None
        if file is not None and is_compared and _may_be_edited(file):
            found = _difference(live, walker.source(module), file)
        if found is not None:
            difference, line = found
            text = (
                f"{module} was modified after this process imported it: {difference}; the package "
                "contains the current file"
            )
            hint = "Restart the process, or reload the module and recreate the object."
            yield Diagnostic.from_code("source-modified", module, text, f"{file}:{line}", hint=hint)
            continue
        is_plain = type(sys.modules.get(module)) is ModuleType
        read = file if has_source_loader else None
        compared = LiveModule(live, defined, read, package.defined, is_plain)
        deviations = [m for m in compared.mismatches() if (module, m.path) not in saved]
        changed += _notes(module, file, deviations, package) if deviations else ()
    yield from changed


def _running(location: Location) -> Mapping[str, object]:
    """Return the namespace of the module that was loaded from a location, or an empty one."""
    module = sys.modules.get(location.module)
    if location.kind is not CodeKind.SOURCE or not is_loaded(module):
        return {}
    live = module_dict(module)
    # A loader may have read another file than the spec names.
    read = module_dict(live.get("__loader__")).get("path")
    return live if location.file in (live.get("__file__"), read) else {}


def _may_be_edited(file: str) -> bool:
    """Return whether a file has changed since this process started."""
    try:
        status = os.stat(file)  # noqa: PTH116  # of thousands of modules, at times
    except OSError:
        return False
    return max(status.st_mtime, status.st_ctime) >= _process_start() - _MARGIN


def _difference(live: Mapping[str, object], source: bytes, file: str) -> tuple[str, int] | None:
    """Return how the code of a live module differs from its source, and on which line.

    Functions and methods are compared with the compiled source. Code outside of functions is not
    available in a live module, but in the ``.pyc`` file, if that is still the one of the import.

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
    if others:
        return _named(list(others)), next(iter(others.values()))
    before = _code_before(file)
    if before is None or same_code(before, compiled):
        return None
    return "code outside of its functions has changed", 1


@cache
def _process_start() -> float:
    """Return the start time of this process, in seconds since the epoch.

    On systems that do not report it, this is the time of the first use of modpack.
    """
    try:
        facts = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        ticks = int(facts[19])  # proc_pid_stat(5): field 22, counted behind the program's name
        running = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, IndexError, ValueError):
        return _FIRST_IMPORTED
    return min(time.time() - running, _FIRST_IMPORTED)


def _named(names: list[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} has changed"
    more = [f"{len(names) - _MAX_FUNCTIONS} more"] if len(names) > _MAX_FUNCTIONS else []
    *shown, last = names[:_MAX_FUNCTIONS] + more
    return f"{', '.join(shown)} and {last} have changed"


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


def _code_before(file: str) -> CodeType | None:
    """Return the code of a file at its last import, or None if the file is unchanged since.

    Return None also without a ``.pyc`` file of this Python version.
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


def _notes(
    module: str, file: str | None, found: Sequence[SourceMismatch], package: _PackageSources
) -> Iterator[Diagnostic]:
    theirs, own = [], []
    for each in found:
        when = package.when(module, each)
        if when is Rebinding.ON_REQUEST:
            theirs.append(each)
        elif when is Rebinding.RUNNING:
            own.append(each)
    if theirs:
        text = (
            f"{module} differs from its source in this process: {_listed(theirs)}; the package "
            "follows the source"
        )
        hint = (
            "Make the change in the source, or in a module that the model's code imports. "
            f"PackageExporter.treat_as_script({module!r}) packages the current state."
        )
        location = f"{file}:{theirs[0].line}"
        yield Diagnostic.from_code("live-changed", module, text, location, hint=hint)
    if own:
        text = (
            f"{module} changed its state at run time: {_listed(own)}; in the package, it starts "
            "from its source"
        )
        yield Diagnostic.from_code("live-state", module, text, f"{file}:{own[0].line}")


def _listed(found: Sequence[SourceMismatch]) -> str:
    parts = [f"{each.path} (line {each.line}) {each.what}" for each in found[:_MAX_DEVIATIONS]]
    if len(found) > _MAX_DEVIATIONS:
        parts.append(f"{len(found) - _MAX_DEVIATIONS} more")
    *first, last = parts
    return f"{'; '.join(first)}; and {last}" if first else last


class _PackageSources:
    """The definitions in the sources of all interned modules, and the names that they rebind.

    Attributes:
        defined: The definitions by module.
    """

    def __init__(self, plan: Plan, walker: Walker) -> None:
        self.defined = {m: walker.scan(m).defined for m in plan.modules(Action.INTERN)}
        self._decisions = plan.decisions
        self._walker = walker

    def when(self, module: str, found: SourceMismatch) -> Rebinding:
        """Return when a name was rebound: at import, by packaged code at run time, or by others.

        A function from outside the package was not set by packaged code.
        """
        if found.home and found.home not in self._decisions:
            return Rebinding.ON_REQUEST
        own, every = self.defined[module], self.defined.values()
        if own.is_dynamic or self._comes_by_star(module, found):
            return Rebinding.AT_IMPORT
        name = found.path.rpartition(".")[2]
        attribute = f".{name}"
        when = {each.settings[attribute] for each in every if attribute in each.settings}
        if not found.is_attribute and name in own.settings:
            when.add(own.settings[name])
        called = {each for defined in every for each in defined.called}
        for defined in every:
            for function, names in defined.setters.items():
                sets_it = attribute in names or ("*" in names and function in own.called)
                sets_it |= defined is own and not found.is_attribute and name in names
                if sets_it and function in called:
                    when.add(Rebinding.AT_IMPORT)
        if Rebinding.AT_IMPORT in when:
            return Rebinding.AT_IMPORT if found.home else Rebinding.RUNNING
        if found.is_own:
            when.add(Rebinding.RUNNING)
        return Rebinding.RUNNING if when == {Rebinding.RUNNING} else Rebinding.ON_REQUEST

    def _comes_by_star(self, module: str, found: SourceMismatch) -> bool:
        """Return whether a name comes from a star import."""
        if found.is_attribute:
            return False
        here = module_dict(sys.modules.get(module)).get(found.path)
        for statement in self._walker.scan(module).imports:
            if statement.names == ("*",) and statement.kind is not ImportKind.TYPE_CHECKING:
                there = module_dict(sys.modules.get(statement.module))
                if found.path in there and there[found.path] is here:
                    return True
        return False
