"""A loaded package as an environment that modules are taken from, for re-export."""

from __future__ import annotations

from collections.abc import Callable

from modpack.core.location import CodeKind, Location
from modpack.hermetic.index import EntryKind, ModuleIndex

__all__ = ["PackageEnvironment"]


class PackageEnvironment:
    """Finds modules in a package's own records; imports nothing.

    Args:
        source: the package file, for people.
        index: its modules.
        read: returns a record's contents.
    """

    def __init__(self, source: str, index: ModuleIndex, read: Callable[[str], bytes]) -> None:
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
        file = f"{self._source}/{entry.record}"
        return Location(module, CodeKind.SOURCE, file, entry.is_package)

    def read_source(self, location: Location) -> bytes:
        """The source of a located module."""
        entry = self._index.find(location.module)
        return self._read(entry.record) if entry is not None else b""

    def live_attribute(self, module: str, name: str) -> str | None:
        """Nothing is assumed about loaded modules: the records say it all."""
        return None
