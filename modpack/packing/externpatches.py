"""Functions of extern modules that other code has replaced here: the package would use the first.

A module may well hold functions of others, which it has imported. So what it holds is compared with
where that is from, and, if it is from elsewhere, with what the module's own source imports.
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, Final

from modpack.core.actions import Action
from modpack.core.names import root_of
from modpack.core.plan import Note, NoteKind, Plan
from modpack.discovery.walk import Walker
from modpack.packing.edited import is_awake
from modpack.packing.livewords import shown
from modpack.resolution.live import contents_of, is_a

__all__ = ["extern_notes"]

_STANDARD: Final = sys.stdlib_module_names


def extern_notes(plan: Plan, walker: Walker) -> Iterator[Note]:
    """A note for each extern function that was replaced here and that packaged code uses.

    Args:
        plan: which modules are extern, and which classes saved objects have.
        walker: has the sources of those that are interned, and reads others.
    """
    kinds = list(_classes(plan))
    for module, live in _modules(plan, kinds):
        values = list(live.values())
        before = _UNCHANGED.get(module, ())
        if len(before) == len(values) and all(map(operator.is_, before, values)):
            continue
        own = True
        for name, function in _foreign(live, root_of(module)):
            if _is_packaged(_home(function), plan):
                own = False  # what replaces it is in the package, and replaces it there as well
                continue
            is_imported = _imports(walker, module, function)
            own = own and is_imported
            if not is_imported and _is_used(name, plan, walker, kinds):
                yield _note(f"{module}.{name}", function)
        if own:
            _UNCHANGED[module] = values
    for each in dict.fromkeys(each for kind in kinds for each in kind.__mro__[:-1]):
        home = each.__module__
        if _is_packaged(home, plan) or root_of(home) in _STANDARD:
            continue
        for name, function in _foreign(vars(each), root_of(home)):
            if not _imports(walker, home, function) and not _is_packaged(_home(function), plan):
                yield _note(f"{home}.{each.__qualname__}.{name}", function)


def _foreign(names: Mapping[str, Any], root: str) -> Iterator[tuple[str, FunctionType]]:
    """The functions that are neither of a library nor of the standard library, nor generated."""
    others = [
        (name, value)
        for name, value in list(names.items())
        if type(value) is FunctionType and value.__globals__ is not names
    ]
    for name, function in others:
        home = _home(function)
        if home.startswith(root) and root_of(home) == root:
            continue
        if root_of(home) not in _STANDARD and home in sys.modules:  # others are generated
            yield name, function


def _home(function: FunctionType) -> str:
    return str(function.__globals__.get("__name__"))


def _modules(plan: Plan, kinds: Iterable[type]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Extern modules, and those whose functions the extern modules among a model's parts call."""
    wanted = dict.fromkeys(plan.modules(Action.EXTERN))
    for each in dict.fromkeys(each for kind in kinds for each in kind.__mro__[:-1]):
        forward = vars(each).get("forward")
        if type(forward) is FunctionType:
            used = map(forward.__globals__.get, forward.__code__.co_names)
            called = (contents_of(found) for found in used if type(found) is ModuleType)
            wanted.update(dict.fromkeys(str(names.get("__name__")) for names in called))
    for module in wanted:
        live = sys.modules.get(module)
        if root_of(module) not in _STANDARD and not _is_packaged(module, plan) and is_awake(live):
            yield module, contents_of(live)


def _is_packaged(module: str, plan: Plan) -> bool:
    decision = plan.decisions.get(module)
    return decision is not None and decision.action is not Action.EXTERN


def _classes(plan: Plan) -> Iterator[type]:
    """The classes that pickles name."""
    for node in plan.graph.nodes():
        if not node.startswith("<"):
            continue
        for module in plan.graph.successors(node):
            live = contents_of(sys.modules.get(module))
            for edge in plan.graph.edges_between(node, module):
                found = (live.get(name) for name in edge.names)
                yield from (each for each in found if is_a(each, type))


_UNCHANGED: dict[str, list[Any]] = {}
"""What modules held when nothing in them was replaced: torch holds two thousand names."""


def _imports(walker: Walker, module: str, function: FunctionType) -> bool:
    """Whether a module's source, or that of its package, imports from where a function is."""
    root = root_of(str(function.__globals__.get("__name__")))
    if (module, root) not in _IMPORTED:
        scans = (walker.scan(each) for each in (module, root_of(module)))
        imported = (statement.module for scan in scans for statement in scan.imports)
        _IMPORTED[module, root] = any(root_of(each) == root for each in imported)
    return _IMPORTED[module, root]


_IMPORTED: dict[tuple[str, str], bool] = {}
"""Whether loaded extern modules import from others: reading torch's takes longer than a save."""


def _is_used(name: str, plan: Plan, walker: Walker, kinds: list[type]) -> bool:
    """Whether interned code has a word for a function, or a method of a saved object calls it."""
    word = re.compile(rb"\b%s\b" % re.escape(name.encode()))
    for module in plan.modules(Action.INTERN):
        if walker.has_source(module) and word.search(walker.source(module)):
            return True
    return any(
        type(method) is FunctionType and name in method.__code__.co_names
        for kind in kinds
        for each in kind.__mro__[:-1]
        for method in vars(each).values()
    )


def _note(path: str, function: FunctionType) -> Note:
    text = (
        f"{path} was replaced here by {shown(function)}. It is extern: where the package is "
        "loaded, packaged code uses the one that is installed there. Call the other one in your "
        "own code, or replace it in a module that the model's code imports"
    )
    return Note(NoteKind.EXTERN_PATCHED, path, text)
