"""The environments that modules are taken from: this interpreter, and a user's own importer.

In this interpreter modules are found, and what is loaded is looked at, without running anything.
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
from modpack.core.process import current_folder
from modpack.discovery.importers import Importer, module_dict

if TYPE_CHECKING:
    from _typeshed.importlib import PathEntryFinderProtocol


def is_a(value: object, kinds: type | tuple[type, ...]) -> TypeGuard[Any]:
    """Whether an object is of a class, by its type alone.

    ``isinstance`` also believes what an object calls its ``__class__``; a proxy, as of a context
    variable or of a module to be loaded later, runs code to answer, or fails.

    >>> is_a(True, int), is_a(int, type)
    (True, True)
    """
    return issubclass(type(value), kinds)


def is_blocked(module: str) -> bool:
    """Whether ``sys.modules`` says that a module must not be imported (None in its place)."""
    return module in sys.modules and sys.modules[module] is None


class _GivesSource(Protocol):
    def get_source(self, fullname: str) -> str | None: ...


class _NamesFile(Protocol):
    def get_filename(self, name: str) -> str: ...


class HostEnvironment(ModuleSource):
    """Finds modules where this interpreter would find them, without importing them.

    ``importlib.util.find_spec("a.b")`` imports ``a``; this asks the finders on
    ``sys.meta_path`` directly, with the folders of the parent, so that nothing runs.
    A module that is already loaded is looked up in ``sys.modules`` first, because it may
    have extended its own ``__path__``.
    """

    def __init__(self) -> None:
        self._found: dict[str, Location | None] = {}
        self._loaders: dict[str, _GivesSource] = {}

    def locate(self, module: str) -> Location | None:
        """Find a module, or return None. Results are kept for the life of this object."""
        if module not in self._found:
            self._found[module] = self._search(module)
        return self._found[module]

    def read_source(self, location: Location) -> bytes:
        """The source of a located module, byte for byte where it is a file.

        Raises:
            OSError: the file cannot be read.
        """
        loader = self._loaders.get(location.module)
        if loader is not None:
            return (loader.get_source(location.module) or "").encode()
        with open(location.file or ".", "rb", buffering=0) as file:  # noqa: PTH123 - there are many
            return file.read()

    def live_attribute(self, module: str, name: str) -> str | None:
        """What a loaded module binds a name to, without triggering its ``__getattr__``."""
        bound = module_dict(sys.modules.get(module))
        if name not in bound:
            return None
        value = bound[name]
        its_name = module_dict(value).get("__name__")
        is_submodule = issubclass(type(value), ModuleType) and its_name == f"{module}.{name}"
        return "submodule" if is_submodule else "attribute"

    def defining_module(self, module: str, name: str) -> str | None:
        """Where a class or function lives that a loaded module binds, lazily or not."""
        value = module_dict(sys.modules.get(module)).get(name)
        if not isinstance(value, (type, FunctionType)):
            return None
        home = module_dict(value).get("__module__") if isinstance(value, type) else None
        home = value.__module__ if home is None else home
        return home if isinstance(home, str) and home in sys.modules else None

    def loaded(self) -> Collection[str]:
        """What ``sys.modules`` holds."""
        return sys.modules.keys()

    def _search(self, module: str) -> Location | None:
        if is_blocked(module):
            return None
        try:
            spec = _loaded_spec(module) or self._find_spec(module)
        except ImportError:  # a finder's way to say that nobody may import it
            return None
        return None if spec is None else self._described(module, spec)

    def _find_spec(self, module: str) -> ModuleSpec | None:
        parent = module.rpartition(".")[0]
        path: list[str] | None = None
        if parent:
            package = self.locate(parent)
            if package is None or not package.is_package:
                return None
            path = list(package.search)
        for finder in sys.meta_path:
            spec = _ask(finder, module, path)
            if spec is not None:
                return spec
        return None

    def _described(self, module: str, spec: ModuleSpec) -> Location:
        search = _folders(spec.submodule_search_locations)
        spec = _as_loaded(module, spec)
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
        is_source = origin.endswith(tuple(importlib.machinery.SOURCE_SUFFIXES))
        if is_source and os.path.isfile(origin):  # noqa: PTH113 - asked of every module
            return CodeKind.SOURCE
        if spec.submodule_search_locations is not None and not spec.has_location:
            return CodeKind.NAMESPACE
        return self._kind_by_loader(module, spec)

    def _kind_by_loader(self, module: str, spec: ModuleSpec) -> CodeKind:
        """Sources that are no files: zipped eggs, and whatever else a loader can read."""
        loader = spec.loader
        if loader is None or not hasattr(loader, "get_source"):
            return CodeKind.UNKNOWN
        reader = cast(_GivesSource, loader)
        try:
            found = reader.get_source(module) is not None
        except (ImportError, OSError):
            found = False
        if not found:
            return CodeKind.UNKNOWN
        self._loaders[module] = reader
        return CodeKind.SOURCE


class ImportedEnvironment(ModuleSource):
    """Asks an importer for its modules: the one kind of environment that has to import them.

    Args:
        importer: an importer that modpack knows nothing else about.
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
        """The source, as :mod:`inspect` finds it."""
        found = self._get(location.module)
        return inspect.getsource(found).encode() if found is not None else b""

    def live_attribute(self, module: str, name: str) -> str | None:
        """What the importer's module binds a name to."""
        bound = getattr(self._get(module), "__dict__", {})
        if name not in bound:
            return None
        value = bound[name]
        same = isinstance(value, ModuleType) and value.__name__.endswith(f"{module}.{name}")
        return "submodule" if same else "attribute"

    def _get(self, module: str) -> ModuleType | None:
        try:
            return self._importer.import_module(module)
        except ModuleNotFoundError:
            return None


def _ask(finder: object, module: str, path: list[str] | None) -> ModuleSpec | None:
    if finder is PathFinder:
        return _search_folders(module, sys.path if path is None else path)
    find = getattr(finder, "find_spec", None)
    return cast("ModuleSpec | None", find(module, path, None)) if find is not None else None


def _search_folders(module: str, folders: Sequence[object]) -> ModuleSpec | None:
    """What PathFinder finds; it cannot say that of a PEP 420 folder in an unloaded package."""
    portions: list[str] = []
    for folder in folders:
        if not isinstance(folder, str):
            continue  # as the import system does
        here = folder or current_folder()
        finder = _finder_of(str(here)) if here is not None else None
        spec = finder.find_spec(module) if finder is not None else None
        if spec is not None and spec.loader is not None:
            return spec
        portions.extend(_folders(spec.submodule_search_locations) if spec is not None else ())
    if not portions:
        return None
    spec = ModuleSpec(module, None, is_package=True)
    spec.submodule_search_locations = portions
    return spec


def _finder_of(folder: str) -> PathEntryFinderProtocol | None:
    """What looks into a folder, also if it was not there when Python asked for it."""
    cache = sys.path_importer_cache
    if cache.get(folder, folder) is None and os.path.exists(folder):  # noqa: PTH110 - as above
        cache.pop(folder, None)
    return pkgutil.get_importer(folder)


def _loaded_spec(module: str) -> ModuleSpec | None:
    """The spec of a loaded module, with the folders that it has by now."""
    contents = module_dict(sys.modules.get(module))
    spec = contents.get("__spec__")
    if not isinstance(spec, ModuleSpec) or spec.name != module:
        return None
    path = cast("Iterable[str] | None", contents.get("__path__"))
    if spec.submodule_search_locations is None and not path:
        return spec  # with a __path__ it is a package, whatever its spec forgot to say
    current = ModuleSpec(module, spec.loader, origin=spec.origin, is_package=True)
    current.submodule_search_locations = list(
        _folders(path) or _folders(spec.submodule_search_locations)
    )
    current.has_location = spec.has_location
    return current


def _as_loaded(module: str, spec: ModuleSpec) -> ModuleSpec:
    """A spec whose origin is the source that its loader reads: a loader may be replaced later."""
    loader, origin = spec.loader, spec.origin
    if hasattr(loader, "get_filename"):
        with contextlib.suppress(ImportError):  # it is the loader of another module
            origin = cast("_NamesFile", loader).get_filename(module)
    suffixes = tuple(importlib.machinery.SOURCE_SUFFIXES)
    if origin == spec.origin or not isinstance(origin, str) or not origin.endswith(suffixes):
        return spec
    loaded = ModuleSpec(module, loader, origin=origin)
    loaded.submodule_search_locations = spec.submodule_search_locations
    loaded.has_location = True
    return loaded


def _folders(path: Iterable[str] | None) -> tuple[str, ...]:
    return tuple(path) if path is not None else ()
