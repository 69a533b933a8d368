"""What a package offers to the import system: an index of its modules."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from modpack.core.names import is_within, parents, root_of

__all__ = ["Entry", "EntryKind", "ModuleIndex"]

_ALWAYS_EXTERN = frozenset({"torch", "torchgen", "functorch", "modpack"})


class EntryKind(Enum):
    """Where a packaged module path leads."""

    SOURCE = "source"
    FOLDER = "folder"
    EXTERN = "extern"


@dataclass(frozen=True)
class Entry:
    """One module path of a package.

    Attributes:
        module: the module path, as the packaged code knows it.
        kind: where it leads.
        record: the source's record, for SOURCE; the folder, for FOLDER.
        is_package: whether it can have submodules in the package.
    """

    module: str
    kind: EntryKind
    record: str = ""
    is_package: bool = False


@dataclass(frozen=True)
class ModuleIndex:
    """All module paths of a package, and which names lead outside.

    Attributes:
        entries: what the package holds, by module path.
        externs: what it imports from where it is loaded, with the requirement
            (``numpy==2.1.0``) that provided it at export, where that is known.
        roots: the first components that belong to the package. An import of one of them
            never reaches the host, except for modules that are extern by name.
    """

    entries: Mapping[str, Entry]
    externs: Mapping[str, str | None] = field(default_factory=dict)
    roots: frozenset[str] = frozenset()
    extern_roots: frozenset[str] = frozenset()

    @staticmethod
    def build(records: Iterable[str], externs: Mapping[str, str | None]) -> ModuleIndex:
        """Read the index off the records' names.

        Args:
            records: the records, internal ones left out.
            externs: the extern modules and what provided them.
        """
        entries = _entries(records)
        extern_roots = frozenset(map(root_of, externs))
        with_code = {root_of(m) for m, e in entries.items() if e.kind is EntryKind.SOURCE}
        roots = with_code | ({root_of(module) for module in entries} - extern_roots)
        for module in externs:
            if root_of(module) in roots:
                entries[module] = Entry(module, EntryKind.EXTERN)
        return ModuleIndex(entries, externs, frozenset(roots), extern_roots)

    def find(self, module: str) -> Entry | None:
        """Where a module path of the package leads; None if the package does not know it."""
        entry = self.entries.get(module)
        if entry is not None:
            return entry
        for parent in parents(module):
            above = self.entries.get(parent)
            if above is not None:
                is_extern = above.kind is EntryKind.EXTERN and not self.has_code_below(parent)
                return Entry(module, EntryKind.EXTERN) if is_extern else None
        return None

    def has_code_below(self, package: str) -> bool:
        """Whether the package holds modules inside a package that is itself extern."""
        return any(
            module != package and is_within(module, package) and entry.kind is EntryKind.SOURCE
            for module, entry in self.entries.items()
        )

    def allows_host(self, module: str) -> bool:
        """Whether packaged code may import a module from where it is loaded."""
        root = root_of(module)
        return (
            root in self.extern_roots or root in _ALWAYS_EXTERN or root in sys.stdlib_module_names
        )


def _entries(records: Iterable[str]) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    folders: dict[str, Entry] = {}
    for record in records:
        *path, file = record.split("/")
        for depth in range(1, len(path) + 1):
            module = ".".join(path[:depth])
            if module not in folders:
                folders[module] = Entry(module, EntryKind.FOLDER, "/".join(path[:depth]), True)
        if file == "__init__.py" and path:
            module = ".".join(path)
            entries[module] = Entry(module, EntryKind.SOURCE, record, True)
        elif file.endswith(".py"):
            module = ".".join([*path, file[:-3]])
            entries.setdefault(module, Entry(module, EntryKind.SOURCE, record))
    return {**folders, **entries}
