"""An index of a package's modules: what it offers to imports, and which may go to the host."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from modpack.core.names import (
    RUNTIME_ROOTS,
    dotted,
    is_within,
    normalized_distribution,
    parents,
    root_of,
)
from modpack.errors import ExternNotFoundError, UntrustedImportError

if TYPE_CHECKING:
    from modpack.core.policy import TrustPolicy

MODULES_NAME = "__modpack_modules__"
"""The builtin that takes the place of ``sys.modules`` in packaged code."""
TORCH_IMPORTER_NAME = "torch_package_importer"
"""What code written for torch.package imports to reach its importer."""


class ImportTarget(NamedTuple):
    """Where an absolute import by packaged code leads.

    Attributes:
        full: the name in ``sys.modules`` of what is imported.
        top: that of its outermost package, if it is one of the package's own modules; else None.
    """

    full: str
    top: str | None


def is_host_import(root: str, extern_roots: Collection[str]) -> bool:
    """Whether packaged code may import modules with this first component from the host.

    Args:
        root: the first component of a module path.
        extern_roots: those of the package's extern modules.
    """
    return root in extern_roots or root in RUNTIME_ROOTS or root in sys.stdlib_module_names


def is_package_import(module: str, roots: Collection[str], extern_roots: Collection[str]) -> bool:
    """Whether an absolute import by packaged code must not reach the host.

    Args:
        module: the module path that it names.
        roots: the first components that belong to the package.
        extern_roots: those of its extern modules.
    """
    if module == TORCH_IMPORTER_NAME:
        return False
    return root_of(module) in roots or not is_host_import(root_of(module), extern_roots)


_log = logging.getLogger("modpack")

_FEW_RECORDS = 128
_NONE: Mapping[str, str | None] = MappingProxyType({})


class IndexEntryKind(Enum):
    """Where a packaged module path leads."""

    SOURCE = "source"
    COMPILED = "compiled"
    FOLDER = "folder"
    EXTERN = "extern"


class IndexEntry(NamedTuple):
    """One module path of a package.

    Attributes:
        module: the module path, as the packaged code knows it.
        kind: where it leads.
        record: the record, for SOURCE and COMPILED; the folder, for FOLDER.
        is_package: whether it can have submodules in the package.
    """

    module: str
    kind: IndexEntryKind
    record: str = ""
    is_package: bool = False

    @property
    def is_code(self) -> bool:
        """Whether the package holds code of that path."""
        return self.kind in (IndexEntryKind.SOURCE, IndexEntryKind.NATIVE)


class ModuleIndex(NamedTuple):
    """All module paths of a package, and which names lead outside.

    Attributes:
        entries: what the package holds, by module path.
        externs: what it imports from where it is loaded, with the requirement
            (``numpy==2.1.0``) that provided it at export, where that is known.
        roots: the first components that belong to the package. An import of one of them
            never reaches the host, except for modules that are extern by name.
        extern_roots: the first components of the extern modules.
        shared: the packages that hold sources of this package at any depth.
        distributions: the folders of distributions' metadata, by normalized names (PEP 503).
        hides_distributions: whether what packaged code cannot import looks absent to it.
        missing: the extern modules that were not here when the package was opened, the outermost
            of each, with the requirement that provided it.
        policy: what its loader lets it take from outside; None for no restriction.
    """

    entries: Mapping[str, IndexEntry]
    externs: Mapping[str, str | None] = _NONE
    roots: frozenset[str] = frozenset()
    extern_roots: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    distributions: Mapping[str, str] = MappingProxyType({})
    hides_distributions: bool = False
    missing: Mapping[str, str | None] = _NONE
    policy: TrustPolicy | None = None

    @staticmethod
    def build(
        records: Collection[str],
        externs: Mapping[str, str | None],
        hides_distributions: bool = False,
        missing: Mapping[str, str | None] = _NONE,
        policy: TrustPolicy | None = None,
    ) -> ModuleIndex:
        """Read the index off the records' names.

        Args:
            records: the records, internal ones left out.
            externs: the extern modules and what provided them.
            hides_distributions: whether what packaged code cannot import looks absent to it:
                so if the package has the metadata of all distributions that it holds.
            missing: the extern modules that are not here.
            policy: what the loader lets it take from outside.

        >>> index = ModuleIndex.build(["mylib/net.py", "data/words.txt"], {"numpy": "numpy==2.1"})
        >>> index.find("mylib.net").kind, index.find("numpy"), sorted(index.roots)
        (<EntryKind.SOURCE: 'source'>, None, ['data', 'mylib'])
        """
        few = len(records) <= _FEW_RECORDS
        index = (_cached if few else _index_of)(tuple(records), tuple(externs))
        return index._replace(
            externs=externs,
            hides_distributions=hides_distributions,
            missing=missing,
            policy=policy,
        )

    def find(self, module: str) -> IndexEntry | None:
        """Where a module path of the package leads; None if the package does not know it."""
        entry = self.entries.get(module)
        if entry is not None:
            return entry
        for parent in parents(module):
            above = self.entries.get(parent)
            if above is not None:
                is_extern = above.kind is IndexEntryKind.EXTERN
                return IndexEntry(module, IndexEntryKind.EXTERN) if is_extern else None
        return None

    def has_code_below(self, package: str) -> bool:
        """Whether the package holds modules inside a package that is itself extern."""
        return package in self.shared

    def requirement(self, module: str) -> str | None:
        """What provided an extern module at export (``numpy==2.1.0``), if that is known."""
        return self.externs.get(module) or self.externs.get(root_of(module))

    def not_found(self, source: str, module: str) -> ExternNotFoundError:
        """The error for an extern module that is not here; names all others that are not.

        Args:
            source: the package file.
            module: the module that was imported.
        """
        requirement = self.requirement(module)
        others = {
            name: its
            for name, its in self.missing.items()
            if not is_within(module, name) and (its is None or its != requirement)
        }
        return ExternNotFoundError(source, module, requirement, tuple(others.items()))

    def absent(self, source: str, module: str) -> ModuleNotFoundError:
        """The error for a module that packaged code may not have, or that the package lacks.

        Args:
            source: the package file.
            module: the module that was imported.
        """
        entry = self.find(module)
        if entry is not None and entry.kind is IndexEntryKind.EXTERN:
            return self.not_found(source, module)
        if root_of(module) in self.roots:
            return ModuleNotFoundError(
                f"No module named {module!r} in {source}, although it holds other modules "
                f"of {root_of(module)!r}. Remedy: intern or extern {module!r} when exporting",
                name=module,
            )
        return ModuleNotFoundError(
            f"No module named {module!r} for code of {source}: it was neither interned, "
            "externed nor mocked when the package was made, so it is not taken from here "
            f"either. Remedy: intern or extern {module!r} when exporting",
            name=module,
        )

    def is_package_import(self, module: str) -> bool:
        """Whether an absolute import by packaged code must not reach the host."""
        return is_package_import(module, self.roots, self.extern_roots)

    def allows_host_import(self, module: str) -> bool:
        """Whether packaged code may import a module from where it is loaded."""
        return is_host_import(root_of(module), self.extern_roots)

    def is_untrusted(self, module: str) -> bool:
        """Whether a module would come from outside, and the loader's policy does not allow that."""
        if self.policy is None or self.policy.allows_extern(module):
            return False
        entry = self.find(module)
        if entry is None:
            return root_of(module) not in self.roots
        return entry.kind is IndexEntryKind.EXTERN

    def require_trust(self, source: str, module: str) -> None:
        """Refuse a module from outside that the loader's policy does not allow.

        Packaged code may take that for a module that is not installed, and go on without: it is
        logged, so that nobody has to wonder.

        Args:
            source: the package file.
            module: the module path.

        Raises:
            UntrustedImportError: tells the remedy.
        """
        if self.policy is None or not self.is_untrusted(module):
            return
        from modpack.core.policy import import_violation  # most loads do without

        problem = str(import_violation(self.policy, module))
        _log.warning("%s: the policy does not allow it: %s", source, problem)
        raise UntrustedImportError(source, module, problem)


def _index_of(records: tuple[str, ...], externs: tuple[str, ...]) -> ModuleIndex:
    """What the names of records and extern modules tell."""
    listed = (name for name in records if name.endswith("/METADATA"))
    found = (re.fullmatch(r"(([^/]+?)-[^/-]+\.dist-info)/METADATA", name) for name in listed)
    distributions = {normalized_distribution(m[2]): m[1] for m in found if m is not None}
    held = set(distributions.values())
    entries = _entries(name for name in records if name.partition("/")[0] not in held)
    extern_roots = frozenset(map(root_of, externs))
    code = [module for module, entry in entries.items() if entry.is_code]
    with_code = set(map(root_of, code))
    # A folder that holds nothing but resources must not hide a module of its name.
    folders = {
        each for each in set(map(root_of, entries)) if not is_host_import(each, extern_roots)
    }
    roots = frozenset(with_code | folders)
    # Nor may it make anybody think that a module from outside is the package's own.
    entries = {module: entry for module, entry in entries.items() if root_of(module) in roots}
    for module in externs:
        if root_of(module) in roots:
            entries[module] = IndexEntry(module, IndexEntryKind.EXTERN)
    packages = {module.rpartition(".")[0] for module in code} - {""}
    shared = frozenset(packages.union(*map(parents, packages)))
    return ModuleIndex(entries, _NONE, roots, extern_roots, shared, distributions)


_cached = lru_cache(maxsize=16)(_index_of)
"""Packages of one project often have the same names, and nobody changes what is read off them."""


def _entries(records: Iterable[str]) -> dict[str, IndexEntry]:
    entries: dict[str, IndexEntry] = {}
    folders: dict[str, IndexEntry] = {}
    seen = {""}
    for record in records:
        folder, _, file = record.rpartition("/")
        package = folder.replace("/", ".")
        if folder not in seen:
            seen.add(folder)
            parts = folder.split("/")
            for depth in range(1, len(parts) + 1):
                module, above = ".".join(parts[:depth]), "/".join(parts[:depth])
                folders.setdefault(module, IndexEntry(module, IndexEntryKind.FOLDER, above, True))
        if file == "__init__.py" and package:
            entries[package] = IndexEntry(package, IndexEntryKind.SOURCE, record, True)
        elif file.endswith(".py"):
            module = dotted(package, file[:-3])
            entries.setdefault(module, IndexEntry(module, IndexEntryKind.SOURCE, record))
        elif suffix := next(filter(file.endswith, EXTENSION_SUFFIXES), ""):
            module = dotted(package, file.removesuffix(suffix))
            entries[module] = IndexEntry(module, IndexEntryKind.NATIVE, record)
    return {**folders, **entries}
