"""Interned modules that hold something else in this process than their sources define.

A notebook, or a session of days, imports a module once, and its file goes on changing: the live
object does what the file said then, and the package would do what it says now. Or code replaces
functions and values of a module while it runs.
"""

from __future__ import annotations

import marshal
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
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
_MARGIN: Final = 1.0  # seconds: clocks of file systems are coarser, and some are elsewhere
_MAX_DEVIATIONS: Final = 4
_MAX_FUNCTIONS: Final = 3
_HEADER: Final = 16
"""Bytes before the code in a .pyc: magic number, flags, the source's time and size (PEP 552)."""


def live_notes(plan: Plan, walker: Walker) -> Iterator[Diagnostic]:
    """Notes for each interned module that does not hold here what its source says.

    Of a module whose file was edited after its import, that is all there is to tell. Of others,
    a note is a warning if something from outside changed what they hold: then the package does
    something else than the object that is saved. State that the module's own code makes while it
    runs is told without one.

    Args:
        plan: which modules are interned, and where they are.
        walker: has their sources.
    """
    package = _PackageSources(plan, walker)
    changed: list[Diagnostic] = []
    for module, defined in package.defined.items():
        location = plan.decisions[module].location
        live = _running(location) if location is not None else {}
        if not live or location is None:
            continue
        file = location.file
        # Other loaders may compile something else than what the file says.
        is_python_s = type(live.get("__loader__")) is SourceFileLoader
        is_compared = is_python_s and live.get("__file__") == file
        found = None
        if file is not None and is_compared and _may_be_edited(file):
            found = _difference(live, walker.source(module), file)
        if found is not None:
            what, line = found
            text = (
                f"{module} was modified after this process imported it: {what}; the package "
                "contains the current file"
            )
            hint = "Restart the process, or reload the module and recreate the object."
            yield Diagnostic.from_code("source-modified", module, text, f"{file}:{line}", hint=hint)
            continue
        is_plain = type(sys.modules.get(module)) is ModuleType
        read = file if is_python_s else None
        compared = LiveModule(live, defined, read, package.defined, is_plain)
        deviations = list(compared.mismatches())
        changed += _notes(module, file, deviations, package) if deviations else ()
    yield from changed


def _running(location: Location) -> Mapping[str, object]:
    """The namespace of the loaded module that comes from a place; empty if none does."""
    module = sys.modules.get(location.module)
    if location.kind is not CodeKind.SOURCE or not is_loaded(module):
        return {}
    live = module_dict(module)
    # A loader may have read another file than its spec said.
    read = module_dict(live.get("__loader__")).get("path")
    return live if location.file in (live.get("__file__"), read) else {}


def _may_be_edited(file: str) -> bool:
    """Whether a file has changed since this process began: an older one says what was imported."""
    try:
        status = os.stat(file)  # noqa: PTH116  # of thousands of modules, at times
    except OSError:
        return False
    return max(status.st_mtime, status.st_ctime) >= _process_start() - _MARGIN


def _difference(live: Mapping[str, object], source: bytes, file: str) -> tuple[str, int] | None:
    """In what the code of a live module differs from its source, and on which line.

    Functions, and methods of classes, are compared with what the source compiles to. What stands
    outside of them leaves no code behind in a live module: that is known if the ``.pyc`` is still
    the one of the import.

    Returns:
        None if they do the same, as far as can be known, or if the source cannot be compiled,
        which others tell.
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
    return "what stands outside of its functions is not what ran", 1


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


def _named(names: list[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} does what its source said then"
    more = [f"{len(names) - _MAX_FUNCTIONS} more"] if len(names) > _MAX_FUNCTIONS else []
    *shown, last = names[:_MAX_FUNCTIONS] + more
    return f"{', '.join(shown)} and {last} do what their source said then"


def _functions_of(live: Mapping[str, object], file: str) -> Iterator[FunctionType]:
    """The functions that a file defines, as far as its module and their classes hold them."""
    here = absolute_file(file)
    todo: list[Any] = list(live.values())
    seen: set[int] = set()
    for value in todo:  # which grows
        if id(value) in seen:
            continue
        seen.add(id(value))
        if not is_a(value, type):
            found = unwrap_functions(value)
            yield from (each for each in found if absolute_file(each.__code__.co_filename) == here)
        elif vars(value).get("__module__") == live.get("__name__"):
            todo += vars(value).values()


def _code_before(file: str) -> CodeType | None:
    """The code of a file when it was last imported; None if that is what it says now.

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
    """The definitions in the sources of all interned modules, and what they change themselves.

    Attributes:
        defined: what each of them defines.
    """

    def __init__(self, plan: Plan, walker: Walker) -> None:
        self.defined = {m: walker.scan(m).defined for m in plan.modules(Action.INTERN)}
        self._decisions = plan.decisions
        self._walker = walker

    def when(self, module: str, found: SourceMismatch) -> Rebinding:
        """When a name came to deviate: if code of the package does so anyway, if it ran, or else.

        A function that no module of the package has was never set by the package's own code.
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
        """Whether a name stands for what a star import gives."""
        if found.is_attribute:
            return False
        here = module_dict(sys.modules.get(module)).get(found.path)
        for statement in self._walker.scan(module).imports:
            if statement.names == ("*",) and statement.kind is not ImportKind.TYPE_CHECKING:
                there = module_dict(sys.modules.get(statement.module))
                if found.path in there and there[found.path] is here:
                    return True
        return False
