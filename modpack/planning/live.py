"""What the process that exports knows and the sources do not say: evidence from loaded modules.

Nothing is imported and no attribute hook is called: only what ``sys.modules`` holds counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from modpack.core.actions import Action, Owner
from modpack.core.graph import Edge
from modpack.core.imports import ImportKind
from modpack.core.location import CodeKind, Location
from modpack.core.names import parents, root_of
from modpack.core.plan import Decision
from modpack.discovery.walk import Walker

__all__ = ["dynamic_importers", "live_edges"]


class _Ownership(Protocol):
    def owner(self, module: str, location: Location | None) -> Owner: ...


def live_edges(
    walker: Walker, decisions: Mapping[str, Decision], ownership: _Ownership
) -> Iterator[Edge]:
    """Evidence for modules that interned code reaches at run time.

    A name that a package gives out lazily (PEP 562) leads to the module where it lives. Of an
    installed distribution whose code imports by names that are known at run time only, the
    modules that are loaded here are needed; likewise where interned code is compiled, whose
    imports nobody can read. Of a package that is saved again, all of it is: it
    holds what such imports led to where it was made.

    Args:
        walker: the walk so far.
        decisions: what was decided by now.
        ownership: tells whose a module is.
    """
    interned = [m for m, d in decisions.items() if d.action is Action.INTERN]
    for module in interned:
        yield from _names_given_out_lazily(walker, module)
    yield from _beside_compiled_code(walker, interned, decisions)
    for importers in dynamic_importers(walker, interned, ownership).values():
        some = next(iter(importers))
        whole = walker.is_from_package(some)
        for module in walker.needed_beside(some):
            is_near = whole or root_of(module) == root_of(some)
            if is_near and module not in decisions and walker.has_source(module):
                importer, line = _nearest(module, importers)
                yield Edge(importer, module, ImportKind.LOADED, line)


def dynamic_importers(
    walker: Walker, interned: list[str], ownership: _Ownership
) -> dict[str, dict[str, int]]:
    """By root: interned modules that import dynamically, of distributions and of packages.

    Returns:
        For each root its modules, with the line of the first such import.
    """
    found: dict[str, dict[str, int]] = {}
    for module in interned:
        unreadable = walker.scan(module).unreadable
        if not unreadable:
            continue
        is_installed = ownership.owner(module, walker.locate(module)) is Owner.INSTALLED
        if is_installed or walker.is_from_package(module):
            found.setdefault(root_of(module), {})[module] = unreadable[0].line
    return found


def _beside_compiled_code(
    walker: Walker, interned: list[str], decisions: Mapping[str, Decision]
) -> Iterator[Edge]:
    compiled: dict[str, str] = {}
    for module in interned:
        location = walker.locate(module)
        if location is not None and location.kind is CodeKind.EXTENSION:
            compiled.setdefault(root_of(module), module)
    for root, importer in compiled.items():
        for module in walker.needed_beside(importer):
            if root_of(module) == root and module not in decisions and walker.locate(module):
                yield Edge(importer, module, ImportKind.LOADED)


def _names_given_out_lazily(walker: Walker, module: str) -> Iterator[Edge]:
    bound = walker.scan(module).bound
    for edge in walker.graph.edges_to(module):
        for name in edge.names:
            if name not in bound and edge.kind.is_dependency:
                home = walker.live_home(module, name)
                if home is not None and home != module:
                    yield Edge(module, home, ImportKind.LOADED, None, (name,))


def _nearest(module: str, importers: Mapping[str, int]) -> tuple[str, int]:
    """The dynamic import that most likely brought a module in: one of a package around it."""
    around = (parent for parent in parents(module) if parent in importers)
    importer = next(around, next(iter(importers)))
    return importer, importers[importer]
