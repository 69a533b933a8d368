"""Module sources: this interpreter, and custom importers.

In this interpreter, modules are found and live modules are inspected without running code.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import inspect
import os
import pkgutil
import sys
from collections.abc import Collection, Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, cast

from modpack.core.graph import CodeKind, Location, ModuleSource
from modpack.core.names import namespace_of
from modpack.core.process import current_folder
from modpack.environment.importers import Importer, module_dict

if TYPE_CHECKING:
    from _typeshed.importlib import PathEntryFinderProtocol


def is_a(value: object, kinds: type | tuple[type, ...]) -> TypeGuard[Any]:
    """Return whether an object is an instance of a class, based on its type alone.

    ``isinstance`` also uses the object's ``__class__``. Proxies, such as those of context variables
    or lazily loaded modules, run code to return it, or fail.

    >>> is_a(True, int), is_a(int, type)
    (True, True)
    """
    return issubclass(type(value), kinds)


def is_blocked(module: str) -> bool:
    """Return whether ``sys.modules`` blocks the import of a module with None."""
    return module in sys.modules and sys.modules[module] is None


class _SourceLoader(Protocol):
    def get_source(self, fullname: str) -> str | None: ...


class _FileLoader(Protocol):
    def get_filename(self, name: str) -> str: ...


class _AliasLoader:
    """Provides the source of a module that is another name of a module."""

    def __init__(self, name: str) -> None:
        self._name = name

    def get_source(self, fullname: str) -> str:
        return (
            f"# In the export environment, {fullname} is another name of {self._name}.\n"
            "import sys\n"
            f"import {self._name} as module\n"
            "sys.modules[__name__] = module\n"
        )


class HostEnvironment(ModuleSource):
    """The modules of this interpreter, found without importing them.

    ``importlib.util.find_spec("a.b")`` imports ``a``. This class calls the finders in
    ``sys.meta_path`` directly, with the folders of the parent, so no module code runs. It checks
    ``sys.modules`` first, because a loaded module may have extended its ``__path__``.
    """

    def __init__(self) -> None:
        self._found: dict[str, Location | None] = {}
        self._loaders: dict[str, _SourceLoader] = {}

    def locate(self, module: str) -> Location | None:
        """Find a module, or return None. Results are cached."""
        if module not in self._found:
            self._found[module] = self._find(module)
        return self._found[module]

    def read_source(self, location: Location) -> bytes:
        """Return the bytes of a located module's file, or its loader's source as UTF-8.

        Loaders provide sources that are not files of their own, such as those in a zip archive.

        Raises:
            OSError: If the file cannot be read.
            ImportError: If the loader cannot provide the source.
        """
        loader = self._loaders.get(location.module)
        if loader is not None:
            return (loader.get_source(location.module) or "").encode()
        with open(location.file or ".", "rb", buffering=0) as file:  # noqa: PTH123 - there are many
            return file.read()

    def live_attribute(self, module: str, name: str) -> str | None:
        """Return what a loaded module binds a name to, without calling its ``__getattr__``."""
        bound = module_dict(sys.modules.get(module))
        if name not in bound:
            return None
        value = bound[name]
        its_name = module_dict(value).get("__name__")
        is_submodule = issubclass(type(value), ModuleType) and its_name == f"{module}.{name}"
        return "submodule" if is_submodule else "attribute"

    def defining_module(self, module: str, name: str) -> str | None:
        """Return the module that defines a class or function that a loaded module binds."""
        value = module_dict(sys.modules.get(module)).get(name)
        if not isinstance(value, (type, FunctionType)):
            return None
        origin = module_dict(value).get("__module__") if isinstance(value, type) else None
        origin = value.__module__ if origin is None else origin
        return origin if isinstance(origin, str) and origin in sys.modules else None

    def loaded(self) -> Collection[str]:
        """Return the names in ``sys.modules``."""
        return sys.modules.keys()

    def _find(self, module: str) -> Location | None:
        if is_blocked(module):
            return None
        try:
            spec = _loaded_spec(module) or self._find_spec(module)
        except ImportError:  # a finder forbids the import
            return None
        return self._find_alias(module) if spec is None else self._location(module, spec)

    def _find_alias(self, module: str) -> Location | None:
        """Find a module that is in ``sys.modules`` under another name than its own.

        A library may let code import its copy of another one by the other's name. A small source
        gives the module this name in a package, too.
        """
        name = module_dict(sys.modules.get(module)).get("__name__")
        if not isinstance(name, str) or name == module or namespace_of(name):
            return None
        target = self.locate(name)
        if target is None or module_dict(sys.modules.get(name)) is not vars(sys.modules[module]):
            return None
        self._loaders[module] = _AliasLoader(name)
        return target._replace(module=module, kind=CodeKind.SOURCE, file=None)

    def _find_spec(self, module: str) -> ModuleSpec | None:
        parent = module.rpartition(".")[0]
        path: list[str] | None = None
        if parent:
            package = self.locate(parent)
            if package is None or not package.is_package:
                return None
            path = list(package.search)
        # Not importlib.util.find_spec, which imports the parent packages.
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is PathFinder:
                spec = _find_in_folders(module, sys.path if path is None else path)
            else:
                spec = find(module, path, None) if find is not None else None
            if spec is not None:
                return spec
        return None

    def _location(self, module: str, spec: ModuleSpec) -> Location:
        search = _folders(spec.submodule_search_locations)
        spec = _with_loader_origin(module, spec)
        kind = self._kind(module, spec)
        file = spec.origin if spec.has_location or kind is CodeKind.SOURCE else None
        is_package = spec.submodule_search_locations is not None
        return Location(module, kind, file, is_package, search)

    def _kind(self, module: str, spec: ModuleSpec) -> CodeKind:
        origin = spec.origin or ""
        if origin in ("built-in", "frozen"):
            return CodeKind.BUILTIN
        if origin.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)):
            return CodeKind.EXTENSION
        if origin.endswith(tuple(importlib.machinery.BYTECODE_SUFFIXES)):
            return CodeKind.BYTECODE
        # A namespace package has no file, and a module in a zip archive has an origin inside of it.
        is_source = origin.endswith(tuple(importlib.machinery.SOURCE_SUFFIXES))
        if is_source and os.path.isfile(origin):  # noqa: PTH113 - called for every module
            return CodeKind.SOURCE
        if spec.submodule_search_locations is not None and not spec.has_location:
            return CodeKind.NAMESPACE
        return self._kind_by_loader(module, spec)

    def _kind_by_loader(self, module: str, spec: ModuleSpec) -> CodeKind:
        """Return SOURCE if the loader has a source that is not a file, as in a zip archive."""
        loader = spec.loader
        if loader is None or not hasattr(loader, "get_source"):
            return CodeKind.UNKNOWN
        reader = cast(_SourceLoader, loader)
        try:
            found = reader.get_source(module) is not None
        except (ImportError, OSError):
            found = False
        if not found:
            return CodeKind.UNKNOWN
        self._loaders[module] = reader
        return CodeKind.SOURCE


class ImportedEnvironment(ModuleSource):
    """The modules of a custom importer. The only module source that has to import modules.

    Args:
        importer: Custom importer.
    """

    def __init__(self, importer: Importer) -> None:
        self._importer = importer

    def locate(self, module: str) -> Location | None:
        """Find a module by importing it; None if the importer does not have it."""
        found = self._get(module)
        if found is None:
            return None
        is_package = hasattr(found, "__path__")
        file = getattr(found, "__file__", None)
        try:
            inspect.getsource(found)
        except (OSError, TypeError):
            kind = CodeKind.NAMESPACE if is_package and file is None else CodeKind.UNKNOWN
            return Location(module, kind, file, is_package)
        return Location(module, CodeKind.SOURCE, file, is_package)

    def read_source(self, location: Location) -> bytes:
        """Return the source that :mod:`inspect` finds."""
        found = self._get(location.module)
        return inspect.getsource(found).encode() if found is not None else b""

    def live_attribute(self, module: str, name: str) -> str | None:
        """Return what the importer's module binds a name to."""
        bound = getattr(self._get(module), "__dict__", {})
        if name not in bound:
            return None
        value = bound[name]
        # An importer may load its modules below a prefix of its own.
        same = isinstance(value, ModuleType) and value.__name__.endswith(f"{module}.{name}")
        return "submodule" if same else "attribute"

    def _get(self, module: str) -> ModuleType | None:
        try:
            return self._importer.import_module(module)
        except ModuleNotFoundError:
            return None


def _find_in_folders(module: str, folders: Sequence[object]) -> ModuleSpec | None:
    """Find a spec like PathFinder, which fails for PEP 420 folders in an unloaded package."""
    portions: list[str] = []
    for folder in folders:
        if not isinstance(folder, str):
            continue  # like the import system
        # An empty entry is the current folder, which may have been deleted.
        folder_path = folder or current_folder()
        finder = _path_entry_finder(str(folder_path)) if folder_path is not None else None
        spec = finder.find_spec(module) if finder is not None else None
        # A module or a package with __init__ ends the search. Other folders are portions of a
        # namespace package (PEP 420), which counts only if no folder has a regular one.
        if spec is not None and spec.loader is not None:
            return spec
        portions.extend(_folders(spec.submodule_search_locations) if spec is not None else ())
    if not portions:
        return None
    spec = ModuleSpec(module, None, is_package=True)
    spec.submodule_search_locations = portions
    return spec


def _path_entry_finder(folder: str) -> PathEntryFinderProtocol | None:
    """Return the finder for a folder, even if Python has cached that the folder was missing."""
    cache = sys.path_importer_cache
    if cache.get(folder, folder) is None and os.path.exists(folder):  # noqa: PTH110 - as above
        cache.pop(folder, None)
    return pkgutil.get_importer(folder)


def _loaded_spec(module: str) -> ModuleSpec | None:
    """Return the spec of a loaded module, with its current ``__path__``."""
    contents = module_dict(sys.modules.get(module))
    spec = contents.get("__spec__")
    # Under an alias, sys.modules has a module with the spec of its own name.
    if not isinstance(spec, ModuleSpec) or spec.name != module:
        return None
    path = cast("Iterable[str] | None", contents.get("__path__"))
    if spec.submodule_search_locations is None and not path:
        return spec  # a module with a __path__ is a package, even if its spec says otherwise
    # A copy: the spec of the live module must stay as it is.
    current = ModuleSpec(module, spec.loader, origin=spec.origin, is_package=True)
    current.submodule_search_locations = list(
        _folders(path) or _folders(spec.submodule_search_locations)
    )
    current.has_location = spec.has_location
    return current


def _with_loader_origin(module: str, spec: ModuleSpec) -> ModuleSpec:
    """Return a spec whose origin is the file that its loader reads, if they differ."""
    loader, origin = spec.loader, spec.origin
    if hasattr(loader, "get_filename"):
        with contextlib.suppress(ImportError):  # a loader for another module
            origin = cast("_FileLoader", loader).get_filename(module)
    suffixes = tuple(importlib.machinery.SOURCE_SUFFIXES)
    if origin == spec.origin or not isinstance(origin, str) or not origin.endswith(suffixes):
        return spec
    loaded = ModuleSpec(module, loader, origin=origin)
    loaded.submodule_search_locations = spec.submodule_search_locations
    loaded.has_location = True
    return loaded


def _folders(path: Iterable[str] | None) -> tuple[str, ...]:
    return tuple(path) if path is not None else ()
