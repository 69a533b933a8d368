"""Changes that other code made to modules in this process, and that the package would lack.

Code may have replaced functions of extern modules; the package would use the originals. Or a module
outside the package may have registered objects in packaged modules at import.

A module may legitimately hold imported functions. Each function is therefore compared with its
defining module and, if that differs, with the imports in the module's source.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any, Final

from modpack.core.names import root_of
from modpack.core.plan import Plan
from modpack.core.rules import Action, Owner
from modpack.diagnostics import Diagnostic
from modpack.discovery.distributions import DistributionIndex
from modpack.discovery.finder import is_a
from modpack.discovery.importers import module_dict
from modpack.discovery.walk import Walker
from modpack.errors import listed
from modpack.exporting.live_code import defining_module, is_loaded
from modpack.exporting.live_state import describe_value
from modpack.pickling.functions import SCRIPTS

_STANDARD: Final = sys.stdlib_module_names
_MAX_ENTRIES: Final = 10_000
"""Larger containers are treated as data."""
_MAX_NAMES: Final = 4


def extern_notes(plan: Plan, walker: Walker) -> Iterator[Diagnostic]:
    """Yield a note for each replaced extern function that packaged code uses.

    Args:
        plan: The plan, with extern modules and the classes of saved objects.
        walker: Provides the sources of interned modules, and reads others.
    """
    classes = dict.fromkeys(each for kind in _pickled_classes(plan) for each in kind.__mro__[:-1])
    for module, live in _patchable_modules(plan, classes):
        for name, function in _foreign_functions(live, root_of(module)):
            # If the replacing function is packaged, it replaces the original after loading too.
            is_packaged = _is_packaged(defining_module(function), plan)
            # Checks for uses first, because reading the imports of torch takes longer.
            if not is_packaged and _is_used(name, plan, walker, classes):
                if not _imports_from(walker, module, function):
                    yield _patch_note(f"{module}.{name}", function)
    for each in classes:
        origin = each.__module__
        if _is_packaged(origin, plan) or root_of(origin) in _STANDARD:
            continue
        for name, function in _foreign_functions(vars(each), root_of(origin)):
            is_packaged = _is_packaged(defining_module(function), plan)
            if not is_packaged and not _imports_from(walker, origin, function):
                yield _patch_note(f"{origin}.{each.__qualname__}.{name}", function)


def _foreign_functions(names: Mapping[str, Any], root: str) -> Iterator[tuple[str, FunctionType]]:
    """Yield functions from modules outside the library and the standard library."""
    known: dict[int, bool] = {}  # by globals: torch has a thousand functions from few modules
    for name, value in list(names.items()):
        if type(value) is FunctionType and value.__globals__ is not names:
            key = id(value.__globals__)
            if key not in known:
                origin = defining_module(value)
                top = root_of(origin)
                # Functions of modules that do not exist are generated.
                known[key] = top != root and top not in _STANDARD and origin in sys.modules
            if known[key]:
                yield name, value


def _patchable_modules(
    plan: Plan, classes: Iterable[type]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield extern modules, and modules whose functions the parts of a model call."""
    wanted = dict.fromkeys(plan.modules(Action.EXTERN))
    for each in classes:
        forward = vars(each).get("forward")
        if type(forward) is FunctionType:
            used = map(forward.__globals__.get, forward.__code__.co_names)
            called = (module_dict(found) for found in used if type(found) is ModuleType)
            wanted.update(dict.fromkeys(str(names.get("__name__")) for names in called))
    for module in wanted:
        live = sys.modules.get(module)
        if root_of(module) not in _STANDARD and not _is_packaged(module, plan) and is_loaded(live):
            yield module, module_dict(live)


def _is_packaged(module: str, plan: Plan) -> bool:
    decision = plan.decisions.get(module)
    return decision is not None and decision.action is not Action.EXTERN


def _pickled_classes(plan: Plan) -> Iterator[type]:
    """Yield the classes that pickles name."""
    for node in (each for each in plan.graph.nodes() if each.startswith("<")):
        for module in plan.graph.successors(node):
            live = module_dict(sys.modules.get(module))
            for edge in plan.graph.edges_between(node, module):
                found = (live.get(name) for name in edge.names)
                yield from (each for each in found if is_a(each, type))


def _imports_from(walker: Walker, module: str, function: FunctionType) -> bool:
    """Return whether a module's or its package's source imports a function's library."""
    root = root_of(defining_module(function))
    scans = (walker.scan(each) for each in (module, root_of(module)))
    return any(root_of(each.module) == root for scan in scans for each in scan.imports)


def _is_used(name: str, plan: Plan, walker: Walker, classes: Iterable[type]) -> bool:
    """Return whether interned code or a saved object's method mentions a function's name."""
    word = re.compile(rb"\b%s\b" % re.escape(name.encode()))
    for module in plan.modules(Action.INTERN):
        if walker.has_source(module) and word.search(walker.source(module)):
            return True
    return any(
        type(method) is FunctionType and name in method.__code__.co_names
        for each in classes
        for method in vars(each).values()
    )


def _patch_note(path: str, function: FunctionType) -> Diagnostic:
    text = (
        f"{path} was replaced in this process by {describe_value(function)}, but it is extern: "
        "packaged code uses the one that is installed in the loading environment"
    )
    hint = (
        "Call the replacement in your own code, or replace the function in a module that the "
        "model's code imports."
    )
    return Diagnostic.from_code("extern-patched", path, text, hint=hint)


def registered_notes(
    plan: Plan, walker: Walker, installed: DistributionIndex
) -> Iterator[Diagnostic]:
    """Yield a note for each of the user's modules that fills a registry but is not packaged.

    Inspects functions and classes in containers of live packaged modules. Executes nothing.

    Args:
        plan: The plan.
        walker: Provides the locations of modules.
        installed: The installed distributions.
    """
    found: dict[str, dict[str, None]] = {}
    for module in plan.modules(Action.INTERN):
        for holder, container in _iter_containers(module):
            for entry in _registered_objects(container):
                origin = getattr(entry, "__module__", None)
                if isinstance(origin, str) and origin != module and origin not in plan.decisions:
                    found.setdefault(origin, {})[f"{entry.__name__} in {module}.{holder}"] = None
    for origin, entries in found.items():
        if _is_own(origin, walker, installed):
            text = (
                f"{origin} registered {listed(list(entries), _MAX_NAMES)} in this process, but no "
                "packaged code imports it, so it is not in the package; packaged code that looks "
                "up these entries fails, with a KeyError for example"
            )
            hint = f"If the model needs them, import {origin} in a packaged module."
            yield Diagnostic.from_code("registered-outside", origin, text, hint=hint)


def _iter_containers(module: str) -> Iterator[tuple[str, object]]:
    """Yield the names of a live module, and the attributes of its own classes and objects."""
    for name, value in list(module_dict(sys.modules.get(module)).items()):
        yield name, value
        kind = value if is_a(value, type) else type(value)
        if type.__getattribute__(kind, "__module__") == module:
            for attribute, inner in list(module_dict(value).items()):
                yield f"{name}.{attribute}", inner


def _registered_objects(container: object) -> Iterator[type | FunctionType]:
    """Yield the functions and classes in a plain container.

    Containers of user-defined classes are skipped, because they might execute code.
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
