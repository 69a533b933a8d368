"""Pickles inside of pickles: what they name, and the namespace in which that can be found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from modpack.core.actions import Action
from modpack.core.graph import Edge
from modpack.core.imports import ImportKind
from modpack.core.plan import Note, NoteKind, Plan
from modpack.security.pickle_tree import PickledName

__all__ = ["needs_process_namespace", "nested_edges", "nested_notes"]

_SCRIPTS = ("__main__", "__mp_main__")
_MOST_NAMES = 4

Nested = Mapping[str, Iterable[PickledName]]
"""By the record of a saved object, what the pickles among its bytes name."""


def nested_edges(node: str, names: Iterable[PickledName]) -> Iterator[Edge]:
    """Return what nested pickles name, as edges to the modules.

    Args:
        node: The saved object.
        names: What they name.
    """
    by_module: dict[str, list[str]] = {}
    for named in names:
        by_module.setdefault(named.module, []).append(named.name)
    for module, used in by_module.items():
        if module not in _SCRIPTS:
            yield Edge(node, module, ImportKind.PICKLE, None, tuple(used))


def needs_process_namespace(plan: Plan, nested: Nested) -> bool:
    """Return whether nested pickles name modules of the package by their real names."""
    return any(_packaged(plan, names) for names in nested.values())


def nested_notes(plan: Plan, nested: Nested) -> Iterator[Note]:
    """Return what a user should know of nested pickles.

    Args:
        plan: What the package will contain.
        nested: What they name.
    """
    for record, names in nested.items():
        packaged = _packaged(plan, names)
        of_scripts = [str(each) for each in names if each.module in _SCRIPTS]
        if packaged:
            text = (
                f"{record} contains bytes that are pickles themselves, made by a __getstate__ for "
                f"example. They name {_shown(packaged)}, which pickle.loads looks up among the "
                "process's own modules. So the package records namespace='process'. modpack.load "
                "uses that; pass namespace='process' to PackageImporter"
            )
            yield Note(NoteKind.NESTED_PICKLE, record, text)
        if of_scripts:
            text = (
                f"{record} contains bytes that are pickles themselves. They name "
                f"{_shown(of_scripts)}, of the script that runs, which is not there when the "
                "package is loaded. Move what they name into a module, and import it"
            )
            yield Note(NoteKind.NESTED_PICKLE, record, text)


def _packaged(plan: Plan, names: Iterable[PickledName]) -> list[str]:
    interned = set(plan.modules(Action.INTERN))
    return [str(each) for each in names if each.module in interned]


def _shown(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
