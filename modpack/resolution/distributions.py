"""Which installed distribution a module belongs to (importlib.metadata's terms)."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from modpack.core.actions import Owner
from modpack.core.location import Location
from modpack.core.names import normalised_distribution as normalised
from modpack.core.names import root_of
from modpack.resolution.contents import DistributionContents, read_contents

if TYPE_CHECKING:
    import importlib_metadata

__all__ = ["RUNTIME_ROOTS", "Distribution", "DistributionIndex", "is_stdlib", "normalised"]

RUNTIME_ROOTS = frozenset({"torch", "torchgen", "functorch", "modpack"})
"""What the torch distribution installs, and modpack: present wherever a package is loaded."""

_COMPILED = re.compile(r"\.(so|pyd|dll|dylib)(\.\d+)*,")
"""A file of machine code, as a line of a RECORD starts with it."""


def is_stdlib(module: str) -> bool:
    """Whether a module belongs to the standard library of this Python.

    >>> is_stdlib("sys"), is_stdlib("concurrent.futures"), is_stdlib("torch")
    (True, True, False)
    """
    root = root_of(module)
    return root in sys.stdlib_module_names or root in sys.builtin_module_names


def _is_elsewhere(root: str) -> bool:
    """Whether the import system finds a standard library name outside the standard library."""
    loaded = sys.modules.get(root)
    if loaded is None:
        spec = PathFinder.find_spec(root) if root not in sys.builtin_module_names else None
    else:
        spec = getattr(loaded, "__spec__", None)
    origin = getattr(spec, "origin", None)
    if not isinstance(origin, str) or not Path(origin).is_file():
        return False  # built in, frozen, zipped, or not there at all
    home = Path(os.__file__).parent
    return not Path(origin).is_relative_to(home) or _in_site_packages(Path(origin))


@dataclass(frozen=True)
class Distribution:
    """An installed distribution.

    Attributes:
        name: its name as it is installed under.
        version: its version.
        editable: whether it is an editable install: its code is the user's own folder.
        requires: the normalised names of the distributions that it requires.
    """

    name: str
    version: str
    editable: bool = False
    requires: frozenset[str] = frozenset()

    @property
    def pin(self) -> str:
        """What to give to pip: ``numpy==2.1.0``."""
        return f"{self.name}=={self.version}"


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

    def owner(self, module: str, location: Location | None) -> Owner:
        """Who is responsible for a module, where it was found."""
        if is_stdlib(module) and not self._is_shadowed(root_of(module)):
            return Owner.STDLIB
        if root_of(module) in RUNTIME_ROOTS:
            return Owner.RUNTIME
        distribution = self.distribution_of(module, location)
        installed = distribution is not None and not distribution.editable
        return Owner.INSTALLED if installed else Owner.LOCAL

    def _is_shadowed(self, root: str) -> bool:
        """Whether a file of the user's has the name of a standard library module and wins."""
        if root not in self._shadowed:
            self._shadowed[root] = _is_elsewhere(root)
        return self._shadowed[root]

    def distribution_of(self, module: str, location: Location | None) -> Distribution | None:
        """The distribution that provides a module; None for loose code."""
        if location is None:
            return None
        key = location.file or "\0".join(location.search)
        if key not in self._owners:
            self._owners[key] = self._search(module, location)
        return self._owners[key]

    def named(self, name: str) -> Distribution | None:
        """The installed distribution of that name (PEP 503); None if there is none."""
        entry = self._entry_named(normalised(name))
        return entry.described if entry is not None else None

    def is_compiled(self, distribution: Distribution) -> bool:
        """Whether a distribution has installed compiled code."""
        entry = self._entry_of(distribution)
        return entry is not None and entry.has_compiled_code

    def contents_of(self, distribution: Distribution) -> DistributionContents | None:
        """The files of an installed distribution; None if it is not installed (any more)."""
        entry = self._entry_of(distribution)
        return entry.contents if entry is not None else None

    def text_of(self, distribution: Distribution, name: str) -> str:
        """The text of a file of a distribution's metadata; empty if it has none of that name."""
        entry = self._entry_of(distribution)
        return entry.text(name) if entry is not None else ""

    def _entry_of(self, distribution: Distribution) -> _Installed | None:
        """Where a distribution is installed; the first place, if there are several."""
        first = self._entry_named(normalised(distribution.name))
        if first is not None and first.described == distribution:
            return first
        mine = (entry for entry in self._installed if entry.described == distribution)
        return next(mine, None)

    def _entry_named(self, name: str) -> _Installed | None:
        """The first distribution of a name: found by its folder's, not by reading all metadata."""
        if name not in self._named:
            described = (entry for entry in self._discover(name) if entry.described is not None)
            self._named[name] = next(described, None)
        return self._named[name]

    def _discover(self, name: str | None = None) -> Iterator[_Installed]:
        import importlib_metadata

        where = {} if self._path is None else {"path": list(self._path)}
        named = {} if name is None else {"name": name}
        finder = importlib_metadata.DistributionFinder
        context = finder.Context(**where, **named)  # type: ignore[no-untyped-call]
        return map(_Installed, importlib_metadata.Distribution.discover(context=context))

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

    @cached_property
    def _owners(self) -> dict[str, Distribution | None]:
        return {}

    @cached_property
    def _shadowed(self) -> dict[str, bool]:
        return {}

    @cached_property
    def _closures(self) -> dict[str, frozenset[str]]:
        return {}

    @cached_property
    def _named(self) -> dict[str, _Installed | None]:
        return {}

    @cached_property
    def _installed(self) -> tuple[_Installed, ...]:
        return tuple(self._discover())

    @cached_property
    def _candidates(self) -> dict[str, tuple[_Installed, ...]]:
        return {}

    def _claiming(self, file: Path) -> tuple[_Installed, ...]:
        """The distributions that may have installed a file: the same for all files beside it."""
        folder = str(file.parent)
        if folder not in self._candidates:
            able = tuple(entry for entry in self._installed if entry.may_have(file))
            self._candidates[folder] = able
        return self._candidates[folder]

    def _search(self, module: str, location: Location) -> Distribution | None:
        """Who claims a module's file; of a folder without code, whoever claims something in it.

        Such a folder may have parts in several places: it is nobody's as soon as one of them is.
        """
        if location.file:
            return self._claimant(module, Path(location.file), False)
        owners = [self._claimant(module, Path(each), True) for each in location.search]
        return None if None in owners else next(iter(owners), None)

    def _claimant(self, module: str, place: Path, is_folder: bool) -> Distribution | None:
        for entry in self._claiming(place):
            if entry.lists(module, place, is_folder) and entry.described is not None:
                return entry.described
        return None


class _Installed:
    """One installed distribution, its metadata read piece by piece as it is needed."""

    def __init__(self, found: importlib_metadata.Distribution) -> None:
        self.found = found

    def lists(self, module: str, file: Path, is_folder: bool = False) -> bool:
        """Whether the distribution claims a file, or something in a folder."""
        if self.source_folder is not None:
            return file.is_relative_to(self.source_folder) and not _in_site_packages(file)
        if not file.is_relative_to(self.folder):
            return False
        if not self.record:  # installed by a tool that keeps no record: all it has is a list
            return root_of(module) in self.top_level
        end = "/" if is_folder else ","
        return f"\n{file.relative_to(self.folder).as_posix()}{end}" in self.record

    def may_have(self, file: Path) -> bool:
        """Whether the distribution can claim files in the folder of a file."""
        if self.source_folder is not None:
            return True
        home, beside = self._home, str(file.parent)
        if not beside.startswith(home):
            return f"{beside}{os.sep}" == home
        return not self.record or f"\n{beside[len(home) :].replace(os.sep, '/')}/" in self.record

    @cached_property
    def has_compiled_code(self) -> bool:
        """Whether it lists a file of machine code."""
        if self.record:
            return _COMPILED.search(self.record) is not None
        return any(
            _COMPILED.search(f"{file},") is not None
            for root in self.top_level
            for file in (self.folder / root).rglob("*")
        )

    @cached_property
    def described(self) -> Distribution | None:
        """What its metadata says; None if that cannot be read, as after a broken install."""
        try:
            metadata = self.found.metadata  # each time it is asked for, it is parsed
            name, version = metadata["Name"], metadata["Version"]  # None, or raises if missing
            lines = metadata.get_all("Requires-Dist") or self._requires_of_eggs()
        except (KeyError, TypeError, OSError, ValueError):
            return None
        if not name or not version:
            return None
        return Distribution(name, version, self.source_folder is not None, _required(lines))

    def _requires_of_eggs(self) -> Sequence[str]:
        """What old tools wrote into a file of its own."""
        return (self.found.requires or ()) if self.text("requires.txt") else ()

    @cached_property
    def contents(self) -> DistributionContents:
        return read_contents(self.found)

    @cached_property
    def folder(self) -> Path:
        return Path(str(self.found.locate_file(""))).absolute()

    @cached_property
    def _home(self) -> str:
        """The folder as paths of files in it begin: asked of each folder of the plan."""
        return f"{self.folder}{os.sep}"

    @cached_property
    def record(self) -> str:
        listed = self.text("RECORD")
        return "\n" + listed if listed else ""

    @cached_property
    def top_level(self) -> frozenset[str]:
        return frozenset(self.text("top_level.txt").split())

    @cached_property
    def source_folder(self) -> Path | None:
        """The folder of an editable install (PEP 610); None for all others."""
        from urllib.request import url2pathname  # it brings networking along, which is not cheap

        try:
            direct_url = json.loads(self.text("direct_url.json") or "{}")
            if not direct_url.get("dir_info", {}).get("editable", False):
                return None
            return Path(url2pathname(urlsplit(direct_url["url"]).path))
        except (ValueError, KeyError, AttributeError):  # not as PEP 610 has it
            return None

    def text(self, name: str) -> str:
        """The text of a file of its metadata; empty if it cannot be read."""
        try:
            return self.found.read_text(name) or ""
        except (OSError, ValueError):
            return ""


def _required(lines: Iterable[str]) -> frozenset[str]:
    """The names in ``Requires-Dist`` lines that count here, without any extra."""
    from packaging.requirements import InvalidRequirement, Requirement

    required: set[str] = set()
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue  # metadata of an old tool: a requirement that pip ignores as well
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            required.add(normalised(requirement.name))
    return frozenset(required)


def _in_site_packages(file: Path) -> bool:
    return any(part in ("site-packages", "dist-packages") for part in file.parts)
