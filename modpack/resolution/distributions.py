"""Which installed distribution a module belongs to (importlib.metadata's terms)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cached_property, lru_cache
from importlib.machinery import PathFinder
from pathlib import Path

from modpack.core.actions import Owner
from modpack.core.location import Location
from modpack.core.names import normalised_distribution as normalised
from modpack.core.names import root_of
from modpack.core.spelledpath import spelled_path
from modpack.resolution.contents import DistributionContents
from modpack.resolution.importpath import Found, ImportPath
from modpack.resolution.installation import Distribution, Installation, in_site_packages

__all__ = [
    "RUNTIME_ROOTS",
    "Distribution",
    "DistributionIndex",
    "is_everywhere",
    "is_stdlib",
    "normalised",
]

RUNTIME_ROOTS = frozenset({"torch", "torchgen", "functorch", "modpack"})
"""What the torch distribution installs, and modpack: present wherever a package is loaded."""


def is_stdlib(module: str) -> bool:
    """Whether a module belongs to the standard library of this Python.

    >>> is_stdlib("sys"), is_stdlib("concurrent.futures"), is_stdlib("torch")
    (True, True, False)
    """
    root = root_of(module)
    return root in sys.stdlib_module_names or root in sys.builtin_module_names


def is_everywhere(module: str) -> bool:
    """Whether a module is there wherever a package is loaded: of Python, of torch, or modpack.

    So is ``__main__``, whatever runs there.

    >>> is_everywhere("os.path"), is_everywhere("torch.nn"), is_everywhere("numpy")
    (True, True, False)
    """
    return is_stdlib(module) or root_of(module) in (*RUNTIME_ROOTS, "__main__")


def _is_elsewhere(root: str) -> bool:
    """Whether the import system finds a standard library name outside the standard library."""
    loaded = sys.modules.get(root)
    if loaded is None:
        spec = PathFinder.find_spec(root) if root not in sys.builtin_module_names else None
    else:
        spec = getattr(loaded, "__spec__", None)
    origin = getattr(spec, "origin", None)
    if not isinstance(origin, str) or not os.path.isfile(origin):  # noqa: PTH113
        return False  # built in, frozen, zipped, or not there at all
    return not _is_in_standard_library(origin)


def _is_in_standard_library(file: str) -> bool:
    """Whether a file lies where Python's own are."""
    return _is_folder_of_python(os.path.dirname(file))  # noqa: PTH120 - asked for each module


@lru_cache(maxsize=1024)
def _is_folder_of_python(folder: str) -> bool:
    home = Path(os.__file__).parent
    return Path(folder).is_relative_to(home) and not in_site_packages(Path(folder))


class DistributionIndex:
    """The installed distributions, by the files that they list as theirs.

    Asking each distribution's RECORD (PEP 376) for one file is much cheaper than
    ``packages_distributions()``, which reads all of them line by line, and exact: a loose file
    that has the name of an installed module belongs to nobody. Metadata is read on first use.

    Args:
        path: the folders in which distributions are looked for; ``sys.path`` if None.
    """

    def __init__(self, path: Sequence[str] | None = None) -> None:
        self._path = path
        self._owners: dict[tuple[str, str], Distribution | None] = {}
        self._shadowed: dict[str, bool] = {}
        self._closures: dict[str, frozenset[str]] = {}
        self._named: dict[str, Installation | None] = {}
        self._met_before: dict[str, Installation] = {}
        self._candidates: dict[str, tuple[Installation, ...]] = {}

    def owner(self, module: str, location: Location | None) -> Owner:
        """Who is responsible for a module, where it was found."""
        if is_stdlib(module) and not self._is_shadowed(root_of(module)):
            return Owner.STDLIB
        if root_of(module) in RUNTIME_ROOTS:
            return Owner.RUNTIME
        distribution = self.distribution_of(module, location)
        if distribution is not None and not distribution.editable:
            return Owner.INSTALLED
        file = location.file if location is not None and distribution is None else None
        # Its tests are no names of it: a user's own package may well be called ``test``.
        is_python_s = file is not None and _is_in_standard_library(file)
        return Owner.STDLIB if is_python_s else Owner.LOCAL

    def _is_shadowed(self, root: str) -> bool:
        """Whether a file of the user's has the name of a standard library module and wins."""
        if root not in self._shadowed:
            self._shadowed[root] = _is_elsewhere(root)
        return self._shadowed[root]

    def distribution_of(self, module: str, location: Location | None) -> Distribution | None:
        """The distribution that provides a module; None for loose code."""
        if location is None:
            return None
        key = module, location.file or "\0".join(location.search)
        if key not in self._owners:
            self._owners[key] = self._search(module, location)
        return self._owners[key]

    def named(self, name: str) -> Distribution | None:
        """The installed distribution of that name (PEP 503); None if there is none."""
        entry = self._entry_named(normalised(name))
        return entry.described if entry is not None else None

    def is_compiled(self, distribution: Distribution) -> bool:
        """Whether a distribution has installed compiled code."""
        entry = self.installation_of(distribution)
        return entry is not None and entry.has_compiled_code

    def contents_of(self, distribution: Distribution) -> DistributionContents | None:
        """The files of an installed distribution; None if it is not installed (any more)."""
        entry = self.installation_of(distribution)
        return entry.contents if entry is not None else None

    def licence_of(self, distribution: Distribution) -> str | None:
        """The licence that an installed distribution's metadata states; None if none."""
        entry = self.installation_of(distribution)
        return entry.licence if entry is not None else None

    def installation_of(self, distribution: Distribution) -> Installation | None:
        """Where a distribution is installed; the first place, if there are several."""
        first = self._entry_named(normalised(distribution.name))
        if first is not None and first.described == distribution:
            return first
        entries = map(self._met, self._import_path.all())
        return next((entry for entry in entries if entry.described == distribution), None)

    def _entry_named(self, name: str) -> Installation | None:
        """The first distribution of a name: found by its folder's, not by reading all metadata."""
        if name not in self._named:
            entries = map(self._met, self._import_path.named(name))
            self._named[name] = next((e for e in entries if e.described is not None), None)
        return self._named[name]

    @cached_property
    def _import_path(self) -> ImportPath:
        return ImportPath(self._path)

    def _met(self, found: Found) -> Installation:
        """An installation; whether what is known of it still holds is asked once."""
        if not found.place:  # it is not in files
            return Installation.of(found)
        if found.place not in self._met_before:
            self._met_before[found.place] = Installation.of(found)
        return self._met_before[found.place]

    def is_published(self, file: str, content: bytes) -> bool:
        """Whether an index has a file with this content, where others can get it as well."""
        place = spelled_path(file)
        return any(entry.has_published(place, content) for entry in self._claiming(place))

    def required_closure(self, distribution: Distribution) -> frozenset[str]:
        """The normalised names of all that a distribution requires, directly or not."""
        if distribution.name not in self._closures:
            self._closures[distribution.name] = self._close(distribution)
        return self._closures[distribution.name]

    def _close(self, distribution: Distribution) -> frozenset[str]:
        reached: set[str] = set()
        todo = [distribution.requires]
        while todo:
            for name in todo.pop() - reached:
                reached.add(name)
                found = self.named(name)
                if found is not None:
                    todo.append(found.requires)
        return frozenset(reached)

    def _claiming(self, file: str) -> tuple[Installation, ...]:
        """The distributions that may have installed a file: the same for all files beside it."""
        folder = os.path.dirname(file)  # noqa: PTH120 - asked for every module
        if folder not in self._candidates:
            near = map(self._met, self._import_path.claiming(folder))
            able = tuple(entry for entry in near if entry.may_have(folder))
            self._candidates[folder] = able
        return self._candidates[folder]

    def _search(self, module: str, location: Location) -> Distribution | None:
        """Who claims a module's file; of a folder without code, whoever claims something in it.

        Such a folder may have parts in several places: it is nobody's as soon as one of them is.
        """
        if location.file:
            return self._claimant(module, spelled_path(location.file), False)
        owners = [self._claimant(module, spelled_path(each), True) for each in location.search]
        return None if None in owners else next(iter(owners), None)

    def _claimant(self, module: str, place: str, is_folder: bool) -> Distribution | None:
        for entry in self._claiming(place):
            if entry.lists(module, place, is_folder) and entry.described is not None:
                return entry.described
        return None
