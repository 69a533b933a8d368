"""The finder and the loaders of packaged modules, on top of Python's import machinery.

A loaded package is also an environment from which an exporter takes modules.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import (
    ExtensionFileLoader,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from modpack.archive.module_index import IndexEntry, IndexEntryKind, ModuleIndex
from modpack.core.names import is_within, normalized, parents, root_of
from modpack.errors import NativeModuleError

if TYPE_CHECKING:
    from importlib.metadata import PathDistribution

    from modpack.core.graph import Location
    from modpack.loading.compile import BytecodeCache
    from modpack.loading.lazy import LazyImports

if TYPE_CHECKING or sys.version_info < (3, 11):
    from importlib.abc import TraversableResources
else:
    from importlib.resources.abc import TraversableResources

Marker = Callable[[ModuleType], None]
"""Puts a namespace's globals into a module before its code runs."""


_VARIANT = "private2"
"""Marks bytecode for private namespaces. Increase it when :func:`compile_module` changes."""


class PackageFinder(MetaPathFinder):
    """Finds the modules of one package, under its prefix.

    Args:
        source: The package file, for errors.
        prefix: The prefix of the package's module paths (``"modpack.packages.pab12."``), or ``""``.
        index: The package's modules.
        tree: The folder with the package's files.
        mark: Puts the namespace's globals into a module before its code runs.

    Attributes:
        imports: The imports that wait; None if all are executed where they are.
    """

    def __init__(
        self, source: str, prefix: str, index: ModuleIndex, tree: Path, mark: Marker
    ) -> None:
        self.source = source
        self.prefix = prefix
        self.index = index
        self.tree = tree
        self.mark = mark
        self.imports: LazyImports | None = None

    @cached_property
    def code(self) -> BytecodeCache | None:
        """The store of compiled code; None if Python keeps it next to the sources."""
        from modpack.loading.cache import FILES
        from modpack.loading.compile import BytecodeCache  # many packages contain no code

        if self.tree.name != FILES or sys.implementation.cache_tag is None:
            return None  # a temporary folder, or a Python without bytecode
        waiting = self.imports.plan.waiting if self.imports is not None else None
        return BytecodeCache(self.tree, self.prefix, waiting)

    def keep_code(self) -> None:
        """Store the code that an import compiled."""
        # Not `self.code`, which imports modpack.loading.compile, although there may be no code.
        if vars(self).get("code") is not None:
            self.code.write()  # type: ignore[union-attr]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module (:meth:`importlib.abc.MetaPathFinder.find_spec`)."""
        if not fullname.startswith(self.prefix):
            return None
        module = fullname[len(self.prefix) :]
        entry = self.index.find(module)
        if entry is not None:
            return self._spec(fullname, entry)
        # Only submodules have a path, which the code of their package may have extended.
        if path is not None and root_of(module) in self.index.roots:
            return self._on_changed_path(fullname, path)
        return None

    def _spec(self, fullname: str, entry: IndexEntry) -> ModuleSpec | None:
        if entry.kind is IndexEntryKind.SOURCE:
            return self._file_spec(fullname, self._file(entry), entry.is_package)
        if entry.kind is IndexEntryKind.EXTERN:
            return self._extern_spec(fullname, entry.module)
        if entry.kind is IndexEntryKind.FOLDER:
            folder = self.tree / entry.record
            spec = ModuleSpec(fullname, FolderLoader(folder, self.mark), is_package=True)
            spec.submodule_search_locations = [str(folder)]
            return spec
        file = self._file(entry)
        loader = CompiledLoader(fullname, file, self)
        return spec_from_file_location(fullname, file, loader=loader)

    def _file(self, entry: IndexEntry) -> str:
        return f"{self.tree}{os.sep}{entry.record.replace('/', os.sep)}"

    def _file_spec(self, fullname: str, file: str, is_package: bool) -> ModuleSpec:
        # Equals spec_from_file_location without its checks, a fifth of an import's time.
        loader = _PackagedLoader(fullname, file, self)
        kind = ModuleSpec if self.code is None else _KeptSpec
        spec = kind(fullname, loader, origin=file)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [os.path.dirname(file)]  # noqa: PTH120
        return spec

    def _extern_spec(self, fullname: str, module: str) -> ModuleSpec | None:
        self.index.require_trust(self.source, module)
        if not self.prefix:
            return _host_spec(module)
        has_code_below = self.index.has_code_below(module)
        return ModuleSpec(fullname, ExternLoader(module, self), is_package=has_code_below)

    def _on_changed_path(self, fullname: str, path: Sequence[str]) -> ModuleSpec | None:
        """Find a module in a folder that its package added to its ``__path__``.

        Folders outside the tree (:func:`pkgutil.extend_path` adds the host's) are removed from the
        path, because the finders of the host would search them next.
        """
        inside = [folder for folder in path if Path(folder).is_relative_to(self.tree)]
        if isinstance(path, list):
            path[:] = inside
        spec = PathFinder.find_spec(fullname, inside)
        # Nothing proves which source the bytecode came from.
        if spec is not None and isinstance(spec.loader, SourcelessFileLoader):
            raise ModuleNotFoundError(
                f"{self.source}: no source for module {fullname[len(self.prefix) :]!r}, only "
                f"bytecode ({spec.origin}), which modpack does not run",
                name=fullname,
            )
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return spec
        is_package = spec.submodule_search_locations is not None
        return self._file_spec(fullname, str(spec.origin), is_package)

    def find_distributions(self, context: Any) -> Iterable[PathDistribution]:
        """Find the package's distributions in the process namespace, for all code.

        Code in a private namespace sees its distributions through a proxy of importlib.metadata.

        Args:
            context: A :class:`importlib.metadata.DistributionFinder.Context`.
        """
        # A caller with a path searches other places than this package.
        if self.prefix or "path" in vars(context):
            return ()
        from importlib.metadata import PathDistribution

        held = self.index.distributions
        wanted = held if context.name is None else [normalized(context.name)]
        return [PathDistribution(self.tree / held[name]) for name in wanted if name in held]

    def adopt(self, spec: ModuleSpec | None) -> ModuleSpec | None:
        """Give a module that packaged code loads by its file the package's loader."""
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return spec
        file = Path(spec.loader.path)
        entry = self.index.entries.get(spec.name)
        if entry is not None and entry.record and file == self.tree / entry.record:
            # The package loads its own module by name: return that module under its full name.
            return self._file_spec(self.prefix + spec.name, str(file), entry.is_package)
        if file.is_relative_to(self.tree):
            spec.loader = _MarkingLoader(spec.name, spec.loader.path, self)
        return spec


def _host_spec(module: str) -> ModuleSpec | None:
    """Find a module of the host without importing its parents."""
    path: Sequence[str] | None = None
    # From the outermost package inwards: the spec of each has the path of the next.
    for name in (*reversed(list(parents(module))), module):
        # The finders of packages would find their own modules of this name.
        others = (each for each in sys.meta_path if not isinstance(each, PackageFinder))
        spec = next(filter(None, (each.find_spec(name, path) for each in others)), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec


class _KeptSpec(ModuleSpec):
    """The spec of a module whose compiled code modpack stores."""

    cached = None  # computing a path would take longer than the rest of the spec


class _MarkingLoader(SourceFileLoader):
    """Python's loader of source files, which puts the namespace's globals into the module."""

    def __init__(self, fullname: str, path: str, finder: PackageFinder) -> None:
        super().__init__(fullname, path)
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        # Not in exec_module, which would add a stack frame to each import.
        module = ModuleType(spec.name)
        self._finder.mark(module)
        return module


class _PackagedLoader(_MarkingLoader):
    """The loader of a package's modules."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        imports = self._finder.imports
        if imports is None:
            return super().create_module(spec)
        local, is_package = spec.name[len(self._finder.prefix) :], self.is_package(spec.name)
        module = imports.make_module(spec.name, local, is_package)
        self._finder.mark(module)
        return module

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the module's stored code, or compile the source."""
        kept = self._finder.code
        if kept is None and self._finder.imports is None:
            return super().get_code(fullname)
        module, file = self.name[len(self._finder.prefix) :], self.path
        code = kept.get(module, file) if kept is not None else None
        if code is None:
            source = self.get_data(file)
            code = self.source_to_code(source, file)
            if kept is not None:
                kept.put(module, file, source, code)
        return code

    def source_to_code(  # type: ignore[override]  # InspectLoader has it as a static method
        self, data: Any, path: Any, *, _optimize: int = -1
    ) -> CodeType:
        finder = self._finder
        # Real names need no translation, so Python's own bytecode is the same.
        if not finder.prefix and finder.imports is None:
            return super().source_to_code(data, path, _optimize=_optimize)
        module, is_package = self.name[len(finder.prefix) :], self.is_package(self.name)
        package = module if is_package else module.rpartition(".")[0]
        from modpack.loading.compile import compile_module

        is_ours = finder.index.is_package_import if finder.prefix else None
        imports = finder.imports
        return compile_module(
            data,
            path,
            package,
            is_ours,
            _optimize,
            is_lazy=imports is not None,
            waiting=imports.plan.waiting.get(module) if imports is not None else None,
            is_package=is_package,
        )

    def get_data(self, path: str) -> bytes:
        return super().get_data(self._variant(path))

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        super().set_data(self._variant(path), data, _mode=_mode)

    def _variant(self, path: str) -> str:
        """Return the path of bytecode; private and process namespaces need different files."""
        stem, _, suffix = path.rpartition(".")
        return f"{stem}.{_VARIANT}.pyc" if self._finder.prefix and suffix == "pyc" else path


class CompiledLoader(ExtensionFileLoader):
    """Python's loader of native extensions, with a better error for a noexec cache."""

    def __init__(self, fullname: str, path: str, finder: PackageFinder) -> None:
        super().__init__(fullname, path)
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Map the file (PEP 489).

        Raises:
            NativeModuleError: If the cache is on a file system that is mounted noexec.
            ImportError: If the module cannot be imported for another reason.
        """
        try:
            module = super().create_module(spec)
        except ImportError as failure:
            if not _may_execute(self.path):
                folder = Path(self.path).parent
                reason = f"cannot be loaded from {folder}, whose file system is mounted noexec"
                hint = "Set MODPACK_CACHE_DIR to a folder on another file system."
                raise NativeModuleError(
                    self._finder.source, self.name, reason, hint=hint
                ) from failure
            raise
        with contextlib.suppress(AttributeError, TypeError):  # a module may be any object
            self._finder.mark(module)
        return module


def _may_execute(path: str) -> bool:
    """Return whether the file system allows code to be mapped; True if it cannot be queried."""
    no_execution = getattr(os, "ST_NOEXEC", 0)
    return not (no_execution and os.statvfs(path).f_flag & no_execution)


class ExternLoader(Loader):
    """Loads an extern module from the host under the package's name.

    The import system uses the entry in ``sys.modules`` after a loader has run, so this loader puts
    the host's module there, unchanged. If the package contains modules below an extern package,
    they must not become attributes of the host's module; a module that forwards to it is used.

    Args:
        module: The module's path in the host.
        finder: The finder of the package's modules.
    """

    def __init__(self, module: str, finder: PackageFinder) -> None:
        self._module = module
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, so that Python creates the module (PEP 451)."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the host's module, or one that forwards to it, into ``sys.modules``."""
        finder = self._finder
        try:
            host = importlib.import_module(self._module)
        except ModuleNotFoundError as failure:
            # The module is there, and another one that it imports is missing.
            if failure.name is None or not is_within(self._module, failure.name):
                raise
            raise finder.index.make_extern_error(finder.source, self._module) from failure
        if not finder.index.has_code_below(self._module):
            sys.modules[module.__name__] = host
            return
        module.__doc__ = host.__doc__
        module.__dict__["__getattr__"] = lambda name: getattr(host, name)
        module.__dict__["__dir__"] = lambda: dir(host)


class FolderResources(TraversableResources):
    """The resources in one folder of a tree (:mod:`importlib.resources.abc`)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def files(self) -> Path:  # a Path is a Traversable
        """Return the folder."""
        return self._folder

    def resource_path(self, resource: Any) -> str:
        """Return the path of a resource's file, which must not be written to."""
        path = self._folder / resource
        if not path.is_file():
            raise FileNotFoundError(str(path))
        return str(path)


class FolderLoader(Loader):
    """Loads a folder without ``__init__`` as an empty package of modules and resources.

    Args:
        folder: The folder.
        mark: Puts the namespace's globals into the package.
    """

    def __init__(self, folder: Path, mark: Marker) -> None:
        self._folder = folder
        self._mark_module = mark

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, so that Python creates the module (PEP 451)."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the namespace's globals into the module; there is no code to execute."""
        self._mark_module(module)

    def get_resource_reader(self, fullname: str) -> FolderResources:
        """Return the files in the folder as resources."""
        return FolderResources(self._folder)


class PackageEnvironment:
    """Finds modules in a package's records without importing them.

    Args:
        source: The package file, for messages.
        index: The package's modules.
        read: Returns a record's contents.
        tree: The folder with the package's files.
        data_files: Returns the records of data files, with the modules or distributions that they
            belong to.
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
        """Find a module of the package; return None for extern and unknown modules."""
        from modpack.core.graph import CodeKind, Location

        entry = self._index.find(module)
        if entry is None or entry.kind is IndexEntryKind.EXTERN:
            return None
        if entry.kind is IndexEntryKind.FOLDER:
            return Location(module, CodeKind.NAMESPACE, None, True)
        kind = CodeKind.SOURCE if entry.kind is IndexEntryKind.SOURCE else CodeKind.EXTENSION
        return Location(module, kind, f"{self._source}/{entry.record}", entry.is_package)

    def read_source(self, location: Location) -> bytes:
        """Return the source of a located module."""
        entry = self._index.find(location.module)
        return self._read(entry.record) if entry is not None else b""

    def live_attribute(self, module: str, name: str) -> str | None:
        """Return None: everything is known from the records."""
        return None

    def defining_module(self, module: str, name: str) -> str | None:
        """Return None: everything is known from the records."""
        return None

    def loaded(self) -> Collection[str]:
        """Return all modules of the package, because the export needed them."""
        entries = self._index.entries.items()
        return [module for module, entry in entries if entry.kind is IndexEntryKind.SOURCE]

    def lacks(self, module: str) -> bool:
        """Return whether a module is neither in the package nor importable from the host."""
        return self._index.find(module) is None and self._index.is_package_import(module)

    @property
    def is_package(self) -> bool:
        """Whether this environment is a package. Always True."""
        return True
