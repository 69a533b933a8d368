"""The distributions that packaged code sees as installed (:mod:`importlib.metadata`).

These are the distributions whose metadata is in the package, then those of the host, except for
distributions that packaged code cannot import: code would take them for installed and then fail.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from modpack.archive.module_index import ModuleIndex
from modpack.core.names import normalized

_NAME = re.compile(r"\s*([A-Za-z0-9][\w.-]*)")
_PROVIDED = ("torch", "modpack")
"""Every loading environment has them and their requirements."""


class VisibleDistributions:
    """The distributions that packaged code sees, as objects of one metadata module.

    Args:
        module: :mod:`importlib.metadata`, or a copy of it.
        index: Returns the index of the package's modules.
        tree: The folder with the package's files.
        load: Imports a module by the path that packaged code writes.
    """

    def __init__(
        self, module: Any, index: Callable[[], ModuleIndex], tree: Path, load: Callable[[str], Any]
    ) -> None:
        self._module = module
        self._index = index
        self._tree = tree
        self._load = load
        self._importable: dict[str, bool] = {}

    def all(self, name: str | None = None) -> Iterator[Any]:
        """Yield all of them, or those of one name; the package's own come first."""
        wanted = None if name is None else normalized(name)
        held = self._index().distributions
        for its_name, folder in held.items():
            if wanted in (None, its_name):
                yield self._own_distribution(self._tree / folder)
        # A distribution in the package hides the host's, which may be another version.
        if wanted not in held:
            only = {} if name is None else {"name": name}
            for found in self._module.distributions(**only):
                if distribution_name(found) not in held and self._is_visible(found):
                    yield found

    def entry_points(self, group: str | None = None) -> Iterator[Any]:
        """Yield all entry points; of two distributions with one name, only the first counts.

        Args:
            group: The requested group. The result contains other groups, too.
        """
        seen: set[str] = set()
        for found in self.all():
            name = distribution_name(found)
            if name not in seen:
                seen.add(name)
                yield from map(self._loading, found.entry_points)

    def packages(self) -> dict[str, list[str]]:
        """Return the names of the distributions that provide each top-level package."""
        provided: dict[str, list[str]] = defaultdict(list)
        for found in self.all():
            for root in _roots_of(found):
                provided[root].append(found.metadata["Name"])
        return dict(provided)

    def _is_visible(self, found: Any) -> bool:
        """Return whether packaged code may see a distribution of the host."""
        index = self._index()
        if not index.hides_distributions:
            return True
        name = distribution_name(found)
        if name not in self._importable:
            # Without modules, there is nothing that packaged code could fail to import.
            roots = _roots_of(found)
            self._importable[name] = not roots or any(map(index.allows_host_import, roots))
        return self._importable[name] or name in self._required_on_host

    @cached_property
    def _required_on_host(self) -> frozenset[str]:
        """The distributions that extern distributions require to work, and themselves."""
        pins = filter(None, self._index().externs.values())
        todo = [*_PROVIDED, *(pin.partition("==")[0] for pin in pins)]
        known: set[str] = set()
        while todo:
            name = normalized(todo.pop())
            if name not in known:
                known.add(name)
                todo.extend(self._requirements(name))
        return frozenset(known)

    def _requirements(self, name: str) -> list[str]:
        try:
            lines = self._module.requires(name) or []
        except self._module.PackageNotFoundError:
            return []
        # Without the requirements of extras, which are optional.
        named = (_NAME.match(line) for line in lines if "extra" not in line.partition(";")[2])
        return [found.group(1) for found in named if found is not None]

    def _loading(self, entry: Any) -> Any:
        """Return an entry point that loads with the imports of packaged code."""
        ours = self._entry_point(name=entry.name, value=entry.value, group=entry.group)
        # Not setattr: entry points are immutable since Python 3.11.
        vars(ours).update(dist=entry.dist)
        return ours

    @cached_property
    def _entry_point(self) -> Any:
        load = self._load

        class EntryPoint(self._module.EntryPoint):  # type: ignore[misc, name-defined]
            def load(self) -> Any:
                path, _, attributes = self.value.partition("[")[0].partition(":")
                found = load(path.strip())
                for attribute in filter(None, attributes.strip().split(".")):
                    found = getattr(found, attribute)
                return found

        return EntryPoint

    @cached_property
    def _own_distribution(self) -> Any:
        loading, module = self._loading, self._module

        class PathDistribution(module.PathDistribution):  # type: ignore[misc, name-defined]
            @property
            def entry_points(self) -> Any:
                return module.EntryPoints(map(loading, super().entry_points))

        return PathDistribution


def metadata_functions(visible: VisibleDistributions, module: Any) -> dict[str, object]:
    """Return the functions that packaged code gets instead of a metadata module's.

    Args:
        visible: The distributions that packaged code sees.
        module: The metadata module.
    """

    def distributions(**options: Any) -> Iterator[Any]:
        context = options.get("context")
        asked = options if context is None else vars(context)
        if "path" in asked:  # an explicit path is searched as usual
            return iter(module.distributions(**options))
        return visible.all(asked.get("name"))

    def distribution(distribution_name: str) -> Any:
        if not distribution_name:
            return module.distribution(distribution_name)  # its own error
        found = next(visible.all(distribution_name), None)
        if found is None:
            raise module.PackageNotFoundError(distribution_name)
        return found

    def entry_points(**parameters: Any) -> Any:
        found = visible.entry_points(parameters.get("group"))
        if hasattr(module, "SelectableGroups"):  # until Python 3.11
            return module.SelectableGroups.load(found).select(**parameters)
        return module.EntryPoints(found).select(**parameters)

    return {
        "Distribution": _distribution_class(module, distribution, distributions),
        "distribution": distribution,
        "distributions": distributions,
        "entry_points": entry_points,
        "files": lambda distribution_name: distribution(distribution_name).files,
        "metadata": lambda distribution_name: distribution(distribution_name).metadata,
        "packages_distributions": visible.packages,
        "requires": lambda distribution_name: distribution(distribution_name).requires,
        "version": lambda distribution_name: distribution(distribution_name).version,
    }


def _distribution_class(
    module: Any, distribution: Callable[[str], Any], distributions: Callable[..., Iterator[Any]]
) -> Any:
    """Return the module's Distribution with class methods that find the visible distributions."""
    real = module.Distribution

    class Seeing(type(real)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            # The functions return objects of the real class, which must pass isinstance.
            if cls is Distribution:
                return isinstance(instance, real)
            return bool(super().__instancecheck__(instance))

    class Distribution(real, metaclass=Seeing):  # type: ignore[misc, valid-type]
        from_name = staticmethod(distribution)
        discover = staticmethod(distributions)

    return Distribution


def distribution_name(found: Any) -> str:
    """Return a distribution's normalized name, from its folder's name if possible."""
    name = getattr(found, "_normalized_name", None) or found.metadata["Name"] or ""
    return normalized(str(name))


def _roots_of(found: Any) -> list[str]:
    """Return the top-level modules of a distribution: declared ones, or those of its files."""
    # Only some build backends write this file.
    declared = (found.read_text("top_level.txt") or "").split()
    if declared:
        return declared
    roots: dict[str, None] = {}
    for file in found.files or ():
        first = file.parts[0] if len(file.parts) > 1 else file.name.partition(".")[0]
        if first.isidentifier() and (len(file.parts) > 1 or file.suffix in (".py", ".so", ".pyd")):
            roots[first] = None
    return [root for root in roots if root != "__pycache__"]
