"""The finder and the loaders: they only say where files are; Python does the rest (PEP 451)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.resources.abc import TraversableResources
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from modpack.hermetic.index import Entry, EntryKind, ModuleIndex

__all__ = ["FolderResources", "PackageFinder"]

Marker = Callable[[ModuleType], None]
"""Puts a namespace's globals into a module before its code runs."""


class PackageFinder(MetaPathFinder):
    """Finds the modules of one package, under its prefix.

    Args:
        prefix: what goes before the package's module paths (``"modpack_ab12."``), or ``""``.
        index: the package's modules.
        tree: the folder with its files.
        mark: puts the namespace's globals into a module before its code runs.
    """

    def __init__(self, prefix: str, index: ModuleIndex, tree: Path, mark: Marker) -> None:
        self.prefix = prefix
        self.index = index
        self._tree = tree
        self._mark = mark

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where a module's file is (:meth:`importlib.abc.MetaPathFinder.find_spec`)."""
        if not fullname.startswith(self.prefix):
            return None
        entry = self.index.find(fullname[len(self.prefix) :])
        return None if entry is None else self._spec(fullname, entry)

    def _spec(self, fullname: str, entry: Entry) -> ModuleSpec | None:
        if entry.kind is EntryKind.EXTERN:
            if not self.prefix and not self.index.has_code_below(entry.module):
                return None  # under real names, the host's finders know it
            shared = self.index.has_code_below(entry.module)
            return ModuleSpec(fullname, _ExternLoader(entry.module, shared), is_package=shared)
        if entry.kind is EntryKind.FOLDER:
            folder = self._tree / entry.record
            spec = ModuleSpec(fullname, _FolderLoader(folder, self._mark), is_package=True)
            spec.submodule_search_locations = [str(folder)]
            return spec
        file = self._tree / entry.record
        locations = [str(file.parent)] if entry.is_package else None
        loader = _PackagedLoader(fullname, str(file), self._mark)
        return spec_from_file_location(
            fullname, file, loader=loader, submodule_search_locations=locations
        )


class _PackagedLoader(SourceFileLoader):
    """Python's own loader of source files, for modules that must know their package."""

    def __init__(self, fullname: str, path: str, mark: Marker) -> None:
        super().__init__(fullname, path)
        self._mark_module = mark

    def exec_module(self, module: ModuleType) -> None:
        self._mark_module(module)
        super().exec_module(module)


class FolderResources(TraversableResources):
    """The resources in one folder of a tree (:mod:`importlib.resources.abc`)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def files(self) -> Path:  # type: ignore[override]  # a Path is a Traversable
        """The folder."""
        return self._folder


class _FolderLoader(Loader):
    """A folder without ``__init__``: an empty package that can hold modules and resources."""

    def __init__(self, folder: Path, mark: Marker) -> None:
        self._folder = folder
        self._mark_module = mark

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        self._mark_module(module)

    def get_resource_reader(self, fullname: str) -> FolderResources:
        return FolderResources(self._folder)


class _ExternLoader(Loader):
    """Stands the host's module in place of a packaged one.

    The import system takes what ``sys.modules`` holds after a loader ran, so the host's module
    takes the place without being touched. Where the package holds modules below an extern
    package, those must not become attributes of the host's: a facade goes between.
    """

    def __init__(self, module: str, shared: bool) -> None:
        self._module = module
        self._shared = shared

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        host = importlib.import_module(self._module)
        if not self._shared:
            sys.modules[module.__name__] = host
            return
        module.__doc__ = host.__doc__
        module.__dict__["__getattr__"] = lambda name: getattr(host, name)
        module.__dict__["__dir__"] = lambda: dir(host)
