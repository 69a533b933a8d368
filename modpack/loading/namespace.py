"""Namespaces: under which names a package's modules live in ``sys.modules``."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Mapping
from importlib.machinery import FileFinder, ModuleSpec
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from modpack.archive.module_index import EntryKind, ModuleIndex
from modpack.errors import NamespaceConflictError
from modpack.loading.finder import FolderLoader, PackageFinder
from modpack.loading.redirect import Redirect

NAMESPACES = ("private", "process")
"""The kinds of namespaces."""

_lock = threading.Lock()
_NOTHING: Mapping[str, object] = MappingProxyType({})
_opened: set[str] = set()
"""The trees that this process has opened."""


class Namespace:
    """The modules of one loaded package.

    Attributes:
        name: a plain identifier, unique in this process.
        prefix: what goes before module paths in ``sys.modules``: ``name + "."`` in a private
            namespace, ``""`` in the process namespace.
    """

    def __init__(
        self,
        name: str,
        prefix: str,
        source: str,
        index: ModuleIndex,
        tree: Path,
        importer: object,
    ) -> None:
        self.name = name
        self.prefix = prefix
        self._importer = importer
        self.finder = PackageFinder(source, prefix, index, tree, self._mark)
        self._redirect = Redirect(source, prefix, index, importer, self.finder.adopt, tree)
        self._redirect.on_imported = self.finder.keep_code

    @property
    def builtins(self) -> dict[str, Any]:
        """The builtins of the package's modules."""
        return self._redirect.builtins

    def import_module(self, module: str) -> ModuleType:
        """Import a module by the path that the packaged code knows, or by its full name."""
        local = self.local_name(module)
        found: ModuleType = self._redirect.load(module if local is None else local)
        return found

    def ready(self, module: str) -> ModuleType | None:
        """What :meth:`import_module` gives if that is imported already; else None."""
        local = self.local_name(module)
        return self._redirect.ready(module if local is None else local)

    def local_name(self, module: str) -> str | None:
        """The path of a module of this package; None for the full name of any other."""
        if self.prefix and module.startswith(self.prefix):
            return module[len(self.prefix) :]
        return None

    def full_name(self, module: str) -> str:
        """The name in ``sys.modules`` of a path that the packaged code knows."""
        return self._redirect.translated(module)

    def use(self, index: ModuleIndex) -> None:
        """From now on, this is what the package holds: more than before."""
        self.finder.index = index
        self._redirect.use(index)
        importlib.invalidate_caches()

    def tell_misses(self, listener: Callable[[str], None]) -> None:
        """Call a function for each module that code of the package imports and cannot have."""
        self._redirect.on_miss = listener

    def close(self) -> None:
        """Take the package's modules out of ``sys.modules``; later imports of them fail."""
        with _lock:
            if self.finder in sys.meta_path:
                sys.meta_path.remove(self.finder)
            for name in self._names():
                sys.modules.pop(name, None)

    def _names(self) -> set[str]:
        """The names in ``sys.modules`` that lead to the package's modules, or did."""
        # No call for each of them: once torch is imported they are thousands.
        loaded = list(sys.modules.items())
        importer = self._importer
        marked = {
            name
            for name, module in loaded
            if getattr(module, "__dict__", _NOTHING).get("__modpack__") is importer
        }
        if self.prefix:
            named = {name for name, _ in loaded if name.startswith(self.prefix)}
        else:  # whatever a module put into its own place
            named = sys.modules.keys() & _sources(self.finder.index)
        return {self.name, *marked, *named}

    def _mark(self, module: ModuleType) -> None:
        self._redirect.note_new_module()
        vars(module).update(
            __builtins__=self._redirect.builtins,
            __modpack__=self._importer,
            __torch_package__=True,
        )


def open_namespace(
    kind: str, digest: str, source: str, index: ModuleIndex, tree: Path, importer: object
) -> Namespace:
    """Make a package's modules importable.

    Args:
        kind: ``"private"`` or ``"process"``.
        digest: the package's digest; names the private namespace.
        source: the package file, for errors.
        index: its modules.
        tree: the folder with its files.
        importer: put into the modules as ``__modpack__``.

    Raises:
        ValueError: ``kind`` is something else.
        NamespaceConflictError: real names are asked for, but some are taken.
    """
    if kind not in NAMESPACES:
        raise ValueError(f"namespace must be 'private' or 'process', not {kind!r}")
    with _lock:
        name = _unused_name(f"modpack_{digest[:12]}")
        prefix = f"{name}." if kind == "private" else ""
        if not prefix:
            _refuse_conflicts(source, index)
        namespace = Namespace(name, prefix, source, index, tree, importer)
        sys.modules[name] = _parent_package(name, tree, importer)
        sys.meta_path.insert(0, namespace.finder)
    _forget_listings(tree)
    return namespace


def _forget_listings(tree: Path) -> None:
    """Have the finders that know a folder of the tree list it anew: the tree may be a new one.

    All others keep what they know; to make them all ask again costs more than to open a package.
    """
    folder = str(tree)
    if folder not in _opened:  # no finder knows it
        _opened.add(folder)
        return
    for place, finder in list(sys.path_importer_cache.items()):
        if place.startswith(folder) and isinstance(finder, FileFinder):
            finder.invalidate_caches()


def _unused_name(wanted: str) -> str:
    name, number = wanted, 1
    while name in sys.modules:
        number += 1
        name = f"{wanted}_{number}"
    return name


def _parent_package(name: str, tree: Path, importer: object) -> ModuleType:
    package = ModuleType(name, "The private parent of a package's modules.")
    spec = ModuleSpec(name, FolderLoader(tree, lambda module: None), is_package=True)
    spec.submodule_search_locations = [str(tree)]
    package.__spec__ = spec
    package.__path__ = [str(tree)]
    vars(package)["__modpack__"] = importer
    return package


def _refuse_conflicts(source: str, index: ModuleIndex) -> None:
    others = [f for f in sys.meta_path if isinstance(f, PackageFinder) and not f.prefix]
    claimed = {module for finder in others for module in _sources(finder.index)}
    ours = _sources(index)
    taken = {module for module in ours if module in sys.modules or module in claimed}
    taken |= {module for module in _folders_with_code(index) if _has_file(sys.modules.get(module))}
    if taken:
        raise NamespaceConflictError(source, tuple(sorted(taken)))


def _sources(index: ModuleIndex) -> set[str]:
    return {m for m, entry in index.entries.items() if entry.is_code}


def _folders_with_code(index: ModuleIndex) -> set[str]:
    folders = {m for m, entry in index.entries.items() if entry.kind is EntryKind.FOLDER}
    return folders & index.shared


def _has_file(module: ModuleType | None) -> bool:
    """Whether a loaded module is a package with an ``__init__``: ours would mix with it."""
    return getattr(module, "__dict__", {}).get("__file__") is not None
