"""Evidence of imports that sources don't name: modules that are loaded in this process.

Nothing is imported and no attribute hook is called. Of the live process, only ``sys.modules`` is
used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from modpack.core.graph import CodeKind, Edge
from modpack.core.names import is_within, parents, root_of
from modpack.core.plan import Decision
from modpack.core.rules import Action, Owner
from modpack.core.scan import ImportKind
from modpack.discovery.distributions import DistributionIndex
from modpack.discovery.walk import Walker


def loaded_edges(
    walker: Walker, decisions: Mapping[str, Decision], installed: DistributionIndex
) -> Iterator[Edge]:
    """Yield edges to modules that interned code reaches at run time.

    A name that a package provides lazily (PEP 562) leads to the module that defines it. If an
    installed distribution imports modules by computed names, its loaded modules are needed. The
    same holds for interned native extensions, whose imports cannot be read. Of a re-exported
    package, every such module is needed: the package contains them because of such imports.

    Args:
        walker: The walk so far.
        decisions: The decisions so far.
        installed: The installed distributions.
    """
    # Loaded modules of the user's own code do not count: they would include the training loop.
    interned = [m for m, d in decisions.items() if d.action is Action.INTERN]
    for module in interned:
        yield from _lazy_attribute_edges(walker, module)
    compiled: dict[str, str] = {}
    for module in interned:
        location = walker.locate(module)
        if location is not None and location.kind is CodeKind.EXTENSION:
            compiled.setdefault(root_of(module), module)
    for root, importer in compiled.items():
        for module in walker.loaded_with(importer):
            if root_of(module) == root and module not in decisions and walker.locate(module):
                yield Edge(importer, module, ImportKind.LIVE_MODULE)
    for importers in dynamic_importers(walker, interned, installed).values():
        some = next(iter(importers))
        whole = walker.is_from_package(some)
        for module in walker.loaded_with(some):
            is_near = whole or root_of(module) == root_of(some)
            if is_near and module not in decisions and walker.has_source(module):
                # A parent package with a dynamic import is the most likely importer.
                enclosing = (parent for parent in parents(module) if parent in importers)
                importer = next(enclosing, some)
                yield Edge(importer, module, ImportKind.LIVE_MODULE, importers[importer])


def dynamic_importers(
    walker: Walker, interned: list[str], installed: DistributionIndex
) -> dict[str, dict[str, int]]:
    """Return interned modules with dynamic imports, of distributions and packages, by root.

    Returns:
        For each root, its modules with the line of their first dynamic import.
    """
    found: dict[str, dict[str, int]] = {}
    for module in interned:
        unreadable = walker.scan(module).unreadable
        if not unreadable:
            continue
        is_installed = installed.owner(module, walker.locate(module)) is Owner.INSTALLED
        if is_installed or walker.is_from_package(module):
            found.setdefault(root_of(module), {})[module] = unreadable[0].line
    return found


def _lazy_attribute_edges(walker: Walker, module: str) -> Iterator[Edge]:
    bound = walker.scan(module).bound
    for edge in walker.graph.edges_to(module):
        for name in edge.names:
            # A name that the source binds has edges already; others exist only in the live module.
            if name not in bound and edge.kind.is_dependency:
                origin = walker.defining_module(module, name)
                if origin is not None and origin != module:
                    yield Edge(module, origin, ImportKind.LIVE_MODULE, None, (name,))


def own_edges(
    walker: Walker, decisions: Mapping[str, Decision], is_own: Callable[[str], bool]
) -> Iterator[Edge]:
    """Yield edges to loaded modules that the user's interned code reaches without naming them.

    These are the modules below a package that lists its folder, and, for ``from package import *``
    with a computed ``__all__``, the submodules. The self-test finds the entry points that code
    loads, and the modules of other folders.

    Args:
        walker: The walk so far.
        decisions: The decisions so far.
        is_own: Returns whether a module is the user's own code.
    """
    for module, decision in decisions.items():
        is_interned = decision.action is Action.INTERN and walker.is_followed(module)
        if not is_interned or not is_own(module):
            continue
        package = module if walker.is_package(module) else module.rpartition(".")[0]
        if walker.scan(module).imports_listed and package:
            for found in walker.loaded_with(module):
                if found != module and is_within(found, package) and walker.has_source(found):
                    yield Edge(module, found, ImportKind.LIVE_MODULE)
        for statement in walker.scan(module).imports:
            if statement.names == ("*",) and statement.kind.is_dependency:
                for found in _star_imported_modules(walker, statement.module):
                    yield Edge(module, found, ImportKind.LIVE_MODULE, statement.line)


def _star_imported_modules(walker: Walker, package: str) -> Iterator[str]:
    """Yield the loaded submodules of a package whose ``__all__`` is computed."""
    scan, environment = walker.scan(package), walker.environment_of(package)
    if environment is not None and scan.exported is None and "__all__" in scan.bound:
        for found in list(environment.loaded()):
            parent, _, name = found.rpartition(".")
            if parent == package and environment.live_attribute(package, name) == "submodule":
                yield found
