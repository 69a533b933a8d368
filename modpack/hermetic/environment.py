"""A loaded package as an environment that modules are taken from, for re-export."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from modpack.core.location import CodeKind, Location
from modpack.hermetic.index import EntryKind, ModuleIndex

__all__ = ["PackageEnvironment"]


class PackageEnvironment:
    """Finds modules in a package's own records; imports nothing.

    Args:
        source: the package file, for people.
        index: its modules.
        read: returns a record's contents.
        tree: the folder with its files.
        data_files: returns the records of the files that its code reads, with the modules or
            distributions that they belong to.
    """

    def __init__(
        self,
        source: str,
        index: ModuleIndex,
        read: Callable[[str], bytes],
        tree: Path,
        data_files: Callable[[], Mapping[str, str]],
    ) -> None:
        self.tree = tree
        self.data_files = data_files
        self._source = source
        self._index = index
        self._read = read

    def locate(self, module: str) -> Location | None:
        """Find a module that the package holds; None for what it takes from outside."""
        entry = self._index.find(module)
        if entry is None or entry.kind is EntryKind.EXTERN:
            return None
        if entry.kind is EntryKind.FOLDER:
            return Location(module, CodeKind.NAMESPACE, None, True)
        kind = CodeKind.SOURCE if entry.kind is EntryKind.SOURCE else CodeKind.EXTENSION
        return Location(module, kind, f"{self._source}/{entry.record}", entry.is_package)

    def read_source(self, location: Location) -> bytes:
        """The source of a located module."""
        entry = self._index.find(location.module)
        return self._read(entry.record) if entry is not None else b""

    def live_attribute(self, module: str, name: str) -> str | None:
        """Nothing is assumed about loaded modules: the records say it all."""
        return None

    def live_home(self, module: str, name: str) -> str | None:
        """Nothing is assumed here either."""
        return None

    def loaded(self) -> Collection[str]:
        """All that the package holds: it was needed where the package was made."""
        entries = self._index.entries.items()
        return [module for module, entry in entries if entry.kind is EntryKind.SOURCE]

    def lacks(self, module: str) -> bool:
        """Whether the package neither holds a module nor may take it from where it is loaded."""
        return self._index.find(module) is None and self._index.keeps(module)

    @property
    def is_package(self) -> bool:
        """It is."""
        return True
