"""Index of a package's modules: its own modules, and imports that may reach the host."""

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
    PACKAGES,
    RUNTIME_ROOTS,
    dotted,
    is_within,
    normalized,
    parents,
    root_of,
)
from modpack.errors import ExternNotFoundError, UntrustedImportError

if TYPE_CHECKING:
    from modpack.core.policy import TrustPolicy

MODULES_NAME = "__modpack_modules__"
"""The builtin that replaces ``sys.modules`` in packaged code."""
TORCH_IMPORTER_NAME = "torch_package_importer"
"""The module through which code written for torch.package gets its importer."""


class ImportTarget(NamedTuple):
    """The target of an absolute import by packaged code.

    Attributes:
        full: The imported module's name in ``sys.modules``.
        top: The top-level name in ``sys.modules``, or None if the module is not in the package.
    """

    full: str
    top: str | None


def is_host_import(root: str, extern_roots: Collection[str]) -> bool:
    """Return whether packaged code may import modules below ``root`` from the host.

    Args:
        root: Top-level name of a module path.
        extern_roots: Top-level names of the package's extern modules.
    """
    return root in extern_roots or root in RUNTIME_ROOTS or root in sys.stdlib_module_names


_log = logging.getLogger("modpack")

_MAX_CACHED_RECORDS = 128
_NONE: Mapping[str, str | None] = MappingProxyType({})


class IndexEntryKind(Enum):
    """The kind of a module path in a package."""

    SOURCE = "source"
    NATIVE = "native"
    FOLDER = "folder"
    EXTERN = "extern"


class IndexEntry(NamedTuple):
    """One module path of a package.

    Attributes:
        module: The module path as packaged code imports it.
        kind: The kind of the module.
        record: The record for SOURCE and NATIVE; the folder for FOLDER.
        is_package: Whether the module can have submodules in the package.
    """

    module: str
    kind: IndexEntryKind
    record: str = ""
    is_package: bool = False

    @property
    def is_code(self) -> bool:
        """Whether the package contains the module's code."""
        return self.kind in (IndexEntryKind.SOURCE, IndexEntryKind.NATIVE)


class ModuleIndex(NamedTuple):
    """All module paths of a package, and its extern modules.

    Attributes:
        entries: The modules in the package, by module path.
        externs: The extern modules, each with the requirement (``numpy==2.1.0``) that provided
            it at export, if known.
        roots: Top-level names that belong to the package. Imports below them never reach the
            host, except for modules that are extern by name.
        extern_roots: Top-level names of the extern modules.
        shared: Python packages that contain packaged code at any depth.
        distributions: Metadata folders of distributions, by normalized name (PEP 503).
        hides_distributions: Whether distributions that packaged code cannot import are hidden.
        missing: Outermost extern modules that were not installed when the package was opened,
            each with the requirement that provided it.
        policy: The trust policy for imports from the host; None for no restriction.
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
        """Build the index from record names.

        Args:
            records: The records, without internal ones.
            externs: The extern modules and the requirements that provided them.
            hides_distributions: Whether distributions that packaged code cannot import are
                hidden. True if the package has the metadata of all distributions in it.
            missing: The extern modules that are not installed.
            policy: The trust policy for imports from the host.

        >>> index = ModuleIndex.build(["mylib/net.py", "data/words.txt"], {"numpy": "numpy==2.1"})
        >>> index.find("mylib.net").kind, index.find("numpy"), sorted(index.roots)
        (<IndexEntryKind.SOURCE: 'source'>, None, ['data', 'mylib'])
        """
        # Only names are keys of the cache, because the other arguments may differ between loads.
        is_small = len(records) <= _MAX_CACHED_RECORDS
        index = (_build_cached if is_small else _build)(tuple(records), tuple(externs))
        return index._replace(
            externs=externs,
            hides_distributions=hides_distributions,
            missing=missing,
            policy=policy,
        )

    def find(self, module: str) -> IndexEntry | None:
        """Return the entry of a module path, or None if the package does not know the module."""
        entry = self.entries.get(module)
        if entry is not None:
            return entry
        # The innermost known parent decides: below an extern module everything is extern, and a
        # packaged one has no other modules than those in the package.
        for parent in parents(module):
            entry = self.entries.get(parent)
            if entry is not None:
                is_extern = entry.kind is IndexEntryKind.EXTERN
                return IndexEntry(module, IndexEntryKind.EXTERN) if is_extern else None
        return None

    def has_code_below(self, package: str) -> bool:
        """Return whether the package contains modules below an extern Python package."""
        return package in self.shared

    def requirement(self, module: str) -> str | None:
        """Return the requirement that provided an extern module (``numpy==2.1.0``), if known."""
        return self.externs.get(module) or self.externs.get(root_of(module))

    def make_extern_error(self, path: str, module: str) -> ExternNotFoundError:
        """Return the error for an extern module that is not installed. It lists all others too.

        Args:
            path: The package file.
            module: The imported module.
        """
        requirement = self.requirement(module)
        # The hint is one install command, so each other requirement is needed once.
        others = {
            name: other
            for name, other in self.missing.items()
            if not is_within(module, name) and (other is None or other != requirement)
        }
        return ExternNotFoundError(path, module, requirement, tuple(others.items()))

    def make_import_error(self, path: str, module: str) -> ModuleNotFoundError:
        """Return the error for a module that is missing in the package or not allowed.

        Args:
            path: The package file.
            module: The imported module.
        """
        entry = self.find(module)
        if entry is not None and entry.kind is IndexEntryKind.EXTERN:
            return self.make_extern_error(path, module)
        # These modules exist only where the other package is loaded as well.
        if is_within(module, PACKAGES):
            reason = "packaged code and pickles cannot name the modules of other loaded packages"
            hint = "Pass their objects to it as arguments."
            return ModuleNotFoundError(f"{path}: {module!r}: {reason}. {hint}", name=module)
        root = root_of(module)
        reason = (
            f"the package contains other modules of {root!r}, but not this one"
            if root in self.roots
            else "the package does not intern, extern, or mock the module"
        )
        return ModuleNotFoundError(
            f"No module named {module!r} in {path}: {reason}. "
            f"Intern or extern {module!r} and export the package again.",
            name=module,
        )

    def is_package_import(self, module: str) -> bool:
        """Return whether an absolute import by packaged code must not reach the host."""
        if module == TORCH_IMPORTER_NAME:
            return False
        root = root_of(module)
        return root in self.roots or not is_host_import(root, self.extern_roots)

    def allows_host_import(self, module: str) -> bool:
        """Return whether packaged code may import a module from the loading environment."""
        is_host = is_host_import(root_of(module), self.extern_roots)
        return is_host and not is_within(module, PACKAGES)

    def is_untrusted(self, module: str) -> bool:
        """Return whether a module is not in the package and the trust policy rejects it."""
        if self.policy is None or self.policy.allows_extern(module):
            return False
        entry = self.find(module)
        if entry is None:
            # Below a packaged root, an unknown module never comes from the host: it is only
            # missing.
            return root_of(module) not in self.roots
        return entry.kind is IndexEntryKind.EXTERN

    def require_trust(self, path: str, module: str) -> None:
        """Reject a module from the host that the trust policy does not allow.

        Packaged code may treat the error as a missing module and continue, so it is also logged.

        Args:
            path: The package file.
            module: The module path.

        Raises:
            UntrustedImportError: If the trust policy does not allow the module.
        """
        if self.policy is None or not self.is_untrusted(module):
            return
        from modpack.core.policy import import_violation  # not needed by most loads

        problem = str(import_violation(self.policy, module))
        _log.warning("%s: import failed: %s", path, problem)
        raise UntrustedImportError(path, module, problem)


def _build(records: tuple[str, ...], externs: tuple[str, ...]) -> ModuleIndex:
    listed = (name for name in records if name.endswith("/METADATA"))
    found = (re.fullmatch(r"(([^/]+?)-[^/-]+\.dist-info)/METADATA", name) for name in listed)
    distributions = {normalized(m[2]): m[1] for m in found if m is not None}
    metadata_folders = set(distributions.values())
    entries = _index_records(n for n in records if n.partition("/")[0] not in metadata_folders)
    extern_roots = frozenset(map(root_of, externs))
    code = [module for module, entry in entries.items() if entry.is_code]
    with_code = set(map(root_of, code))
    # A folder that contains only resources must not shadow a host module of the same name.
    folders = {
        each for each in set(map(root_of, entries)) if not is_host_import(each, extern_roots)
    }
    roots = frozenset(with_code | folders)
    # Such a folder must not make a host module appear as a packaged one either.
    entries = {module: entry for module, entry in entries.items() if root_of(module) in roots}
    for module in externs:
        if root_of(module) in roots:
            entries[module] = IndexEntry(module, IndexEntryKind.EXTERN)
    packages = {module.rpartition(".")[0] for module in code} - {""}
    shared = frozenset(packages.union(*map(parents, packages)))
    return ModuleIndex(entries, _NONE, roots, extern_roots, shared, distributions)


_build_cached = lru_cache(maxsize=16)(_build)
"""Packages of one project often have the same record names. The result is immutable."""


def _index_records(records: Iterable[str]) -> dict[str, IndexEntry]:
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
                module, path = ".".join(parts[:depth]), "/".join(parts[:depth])
                folders.setdefault(module, IndexEntry(module, IndexEntryKind.FOLDER, path, True))
        if file == "__init__.py" and package:
            entries[package] = IndexEntry(package, IndexEntryKind.SOURCE, record, True)
        elif file.endswith(".py"):
            module = dotted(package, file[:-3])
            # As in Python, a package or an extension precedes a plain module of its name.
            entries.setdefault(module, IndexEntry(module, IndexEntryKind.SOURCE, record))
        elif suffix := next(filter(file.endswith, EXTENSION_SUFFIXES), ""):
            module = dotted(package, file.removesuffix(suffix))
            entries[module] = IndexEntry(module, IndexEntryKind.NATIVE, record)
    # A folder is a namespace package only if no module or package has its name.
    return {**folders, **entries}
