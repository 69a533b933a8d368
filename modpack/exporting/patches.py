"""Changes that other code made to modules in this process, and that a package would lack.

It replaced functions of extern modules: the package would use the originals. Or it registered
something in packaged modules by being imported, and is itself in no package. A module may well
hold functions of others, which it has imported. So what it holds is compared with where that is
from, and, if it is from elsewhere, with what the module's own source imports.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any, Final

from modpack.core.names import root_of
from modpack.core.plan import Note, NoteKind, Plan
from modpack.core.rules import Action, Owner
from modpack.core.text import listed
from modpack.discovery.distributions import DistributionIndex
from modpack.discovery.finder import is_a
from modpack.discovery.importers import module_dict
from modpack.discovery.walk import Walker
from modpack.exporting.live_code import home_of, is_awake
from modpack.exporting.live_state import shown
from modpack.pickling.functions import SCRIPTS

_STANDARD: Final = sys.stdlib_module_names
_MAX_ENTRIES: Final = 10_000
"""Of one container: a larger one is data."""
_MAX_NAMES: Final = 4


def extern_notes(plan: Plan, walker: Walker) -> Iterator[Note]:
    """A note for each extern function that was replaced here and that packaged code uses.

    Args:
        plan: which modules are extern, and which classes saved objects have.
        walker: has the sources of those that are interned, and reads others.
    """
    classes = dict.fromkeys(each for kind in _classes(plan) for each in kind.__mro__[:-1])
    for module, live in _modules(plan, classes):
        for name, function in _foreign(live, root_of(module)):
            # What replaces it may be in the package, and replaces it there as well.
            is_ours = _is_packaged(home_of(function), plan)
            # Whether it is used is asked first: to read the imports of torch takes longer.
            if not is_ours and _is_used(name, plan, walker, classes):
                if not _imports(walker, module, function):
                    yield _note(f"{module}.{name}", function)
    for each in classes:
        home = each.__module__
        if _is_packaged(home, plan) or root_of(home) in _STANDARD:
            continue
        for name, function in _foreign(vars(each), root_of(home)):
            if not _is_packaged(home_of(function), plan) and not _imports(walker, home, function):
                yield _note(f"{home}.{each.__qualname__}.{name}", function)


def _foreign(names: Mapping[str, Any], root: str) -> Iterator[tuple[str, FunctionType]]:
    """The functions that are neither of a library nor of the standard library, nor generated."""
    known: dict[int, bool] = {}  # by their globals: torch has a thousand functions of few modules
    for name, value in list(names.items()):
        if type(value) is FunctionType and value.__globals__ is not names:
            key = id(value.__globals__)
            if key not in known:
                home = home_of(value)
                top = root_of(home)
                # Functions of modules that are not there are generated.
                known[key] = top != root and top not in _STANDARD and home in sys.modules
            if known[key]:
                yield name, value


def _modules(plan: Plan, classes: Iterable[type]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Extern modules, and those whose functions the extern modules among a model's parts call."""
    wanted = dict.fromkeys(plan.modules(Action.EXTERN))
    for each in classes:
        forward = vars(each).get("forward")
        if type(forward) is FunctionType:
            used = map(forward.__globals__.get, forward.__code__.co_names)
            called = (module_dict(found) for found in used if type(found) is ModuleType)
            wanted.update(dict.fromkeys(str(names.get("__name__")) for names in called))
    for module in wanted:
        live = sys.modules.get(module)
        if root_of(module) not in _STANDARD and not _is_packaged(module, plan) and is_awake(live):
            yield module, module_dict(live)


def _is_packaged(module: str, plan: Plan) -> bool:
    decision = plan.decisions.get(module)
    return decision is not None and decision.action is not Action.EXTERN


def _classes(plan: Plan) -> Iterator[type]:
    """The classes that pickles name."""
    for node in (each for each in plan.graph.nodes() if each.startswith("<")):
        for module in plan.graph.successors(node):
            live = module_dict(sys.modules.get(module))
            for edge in plan.graph.edges_between(node, module):
                found = (live.get(name) for name in edge.names)
                yield from (each for each in found if is_a(each, type))


def _imports(walker: Walker, module: str, function: FunctionType) -> bool:
    """Whether a module's source, or that of its package, imports from where a function is."""
    root = root_of(home_of(function))
    scans = (walker.scan(each) for each in (module, root_of(module)))
    return any(root_of(each.module) == root for scan in scans for each in scan.imports)


def _is_used(name: str, plan: Plan, walker: Walker, classes: Iterable[type]) -> bool:
    """Whether interned code has a word for a function, or a method of a saved object calls it."""
    word = re.compile(rb"\b%s\b" % re.escape(name.encode()))
    for module in plan.modules(Action.INTERN):
        if walker.has_source(module) and word.search(walker.source(module)):
            return True
    return any(
        type(method) is FunctionType and name in method.__code__.co_names
        for each in classes
        for method in vars(each).values()
    )


def _note(path: str, function: FunctionType) -> Note:
    text = (
        f"{path} was replaced here by {shown(function)}. It is extern: where the package is "
        "loaded, packaged code uses the one that is installed there. Call the other one in your "
        "own code, or replace it in a module that the model's code imports"
    )
    return Note(NoteKind.EXTERN_PATCHED, path, text)


def registered_notes(plan: Plan, walker: Walker, installed: DistributionIndex) -> Iterator[Note]:
    """Return a note for each module of one's own that fills a registry, and is left out.

    Looks at functions and classes in the containers of live packaged modules. Runs nothing.

    Args:
        plan: What the package will contain.
        walker: Knows where modules are.
        installed: The distributions of this interpreter.
    """
    found: dict[str, dict[str, None]] = {}
    for module in plan.modules(Action.INTERN):
        for holder, container in _containers(module):
            for entry in _values(container):
                home = getattr(entry, "__module__", None)
                if isinstance(home, str) and home != module and home not in plan.decisions:
                    found.setdefault(home, {})[f"{entry.__name__} in {module}.{holder}"] = None
    for home, entries in found.items():
        if _is_own(home, walker, installed):
            text = (
                f"{home} is not in the package, for no packaged code imports it. It is imported in "
                f"this process, and registered {listed(list(entries), _MAX_NAMES)}. Code that "
                "looks that up fails where the package is loaded, with a KeyError for example. If "
                f"the model needs it, import {home} in a packaged module"
            )
            yield Note(NoteKind.REGISTERED_OUTSIDE, home, text)


def _containers(module: str) -> Iterator[tuple[str, object]]:
    """The names of a live module, and the attributes of its own classes and objects."""
    for name, value in list(module_dict(sys.modules.get(module)).items()):
        yield name, value
        kind = value if is_a(value, type) else type(value)
        if type.__getattribute__(kind, "__module__") == module:
            for attribute, inner in list(module_dict(value).items()):
                yield f"{name}.{attribute}", inner


def _values(container: object) -> Iterator[type | FunctionType]:
    """The functions and classes in a plain container.

    A class of one's own might run code when asked.
    """
    values: Sequence[object] = ()
    if is_a(container, dict):
        values = list(dict.values(container))
    elif type(container) in (list, tuple, set):
        values = list(container)  # type: ignore[call-overload]
    if len(values) <= _MAX_ENTRIES:
        yield from (each for each in values if is_a(each, (type, FunctionType)))


def _is_own(module: str, walker: Walker, installed: DistributionIndex) -> bool:
    parts = module.split(".")
    if any(part in ("tests", "test", "conftest") or part[:5] == "test_" for part in parts):
        return False
    location = walker.locate(module)
    if module in SCRIPTS or module not in sys.modules or location is None or not location.file:
        return False
    return installed.owner(module, location) is Owner.LOCAL
