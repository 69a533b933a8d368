"""Namespaces: the names of a package's modules in ``sys.modules``, and their imports.

Packaged modules get their own builtins with another ``__import__``, so that ``import mylib`` finds
the packaged ``mylib`` even if the host has a module of that name. Functions of the standard library
that take module paths as strings are replaced through proxies: the ``importlib`` that packaged code
sees forwards all other names to the real module.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from importlib.machinery import FileFinder, ModuleSpec
from pathlib import Path
from types import MappingProxyType, ModuleType, NoneType
from typing import TYPE_CHECKING, Any

from modpack.archive.module_index import (
    MODULES_NAME,
    TORCH_IMPORTER_NAME,
    ImportTarget,
    IndexEntryKind,
    ModuleIndex,
)
from modpack.core.names import PACKAGES, is_within, root_of
from modpack.core.process import raise_gc_threshold, restore_gc_threshold
from modpack.environment.importers import module_dict
from modpack.errors import NamespaceConflictError
from modpack.loading.finder import FolderLoader, PackageFinder

if TYPE_CHECKING:
    from modpack.loading.lazy import LazyPlan

_lock = threading.Lock()
_NOTHING: Mapping[str, object] = MappingProxyType({})
_opened: set[str] = set()
"""Trees that this process has opened."""
_open: dict[str, Namespace] = {}
"""The open namespaces by name."""
_closed: set[str] = set()
"""Names of private namespaces that were closed, and not opened again since."""


class ModuleProxy(ModuleType):
    """A module that forwards to another, except for some names."""

    def __init__(
        self,
        real: ModuleType,
        replaced: Mapping[str, object],
        view: Callable[[object], object],
    ) -> None:
        super().__init__(real.__name__, real.__doc__)
        # ModuleType sets these to None, so `__getattr__` would never forward them.
        for name in ("__spec__", "__loader__", "__package__"):
            vars(self)[name] = getattr(real, name, None)
        vars(self).update(replaced, __modpack_real__=real, __modpack_view__=view)

    def __getattr__(self, name: str) -> Any:
        return vars(self)["__modpack_view__"](getattr(vars(self)["__modpack_real__"], name))

    def __setattr__(self, name: str, value: object) -> None:
        setattr(vars(self)["__modpack_real__"], name, value)

    def __dir__(self) -> list[str]:
        return dir(vars(self)["__modpack_real__"])


def _translating(namespace: Namespace, module: object, *names: str) -> dict[str, object]:
    """Wrap functions of a module whose first argument can be a packaged module path."""

    def translating(function: Callable[..., Any]) -> Callable[..., Any]:
        def translated(anchor: Any = None, *arguments: Any, **options: Any) -> Any:
            if anchor is None:
                # The function itself would take its caller, which is this one.
                anchor = sys._getframe(1).f_globals["__name__"]
            if isinstance(anchor, str):
                # pkgutil.resolve_name also takes ``package.module:object``.
                namespace.require_reach(anchor.partition(":")[0])
                anchor = namespace.full_name(anchor)
            return function(anchor, *arguments, **options)

        return translated

    return {name: translating(getattr(module, name)) for name in names if hasattr(module, name)}


def _importlib(namespace: Namespace, module: Any) -> dict[str, object]:
    return {
        "import_module": namespace.import_by_name,
        "__import__": namespace.import_statement,
    }


def _importlib_util(namespace: Namespace, module: Any) -> dict[str, object]:
    def spec_from_file_location(*arguments: Any, **options: Any) -> ModuleSpec | None:
        return namespace.finder.adopt(module.spec_from_file_location(*arguments, **options))

    return {"find_spec": namespace.find_spec, "spec_from_file_location": spec_from_file_location}


def _importlib_resources(namespace: Namespace, module: Any) -> dict[str, object]:
    opening = ("open_binary", "open_text", "path", "read_binary", "read_text")
    return _translating(namespace, module, "contents", "files", "is_resource", *opening)


def _pkgutil(namespace: Namespace, module: Any) -> dict[str, object]:
    def walk_packages(
        path: Iterable[str] | None = None, prefix: str = "", onerror: Any = None
    ) -> Iterator[Any]:
        full = namespace.full_name(prefix)  # the function imports packages below this prefix
        for found in module.walk_packages(path, full, onerror):
            name = found.name if full == prefix else namespace.local_name(found.name)
            yield found._replace(name=name)

    names = ("find_loader", "get_data", "get_loader", "resolve_name")
    return {**_translating(namespace, module, *names), "walk_packages": walk_packages}


def _metadata(namespace: Namespace, module: Any) -> dict[str, object]:
    from modpack.loading.metadata import VisibleDistributions, metadata_functions

    finder = namespace.finder
    visible = VisibleDistributions(module, lambda: finder.index, finder.tree, namespace.load)
    return metadata_functions(visible, module)


_PROXIED: dict[str, Callable[[Namespace, Any], dict[str, object]]] = {
    "importlib": _importlib,
    "importlib.resources": _importlib_resources,
    "importlib.util": _importlib_util,
    "pkgutil": _pkgutil,
}
"""Standard-library modules that packaged code sees through a proxy, with the replaced names."""


class LoadedModules(MutableMapping[str, ModuleType]):
    """``sys.modules`` for packaged code: a packaged module's own path finds that module.

    Code that looks itself up by its literal name, ``sys.modules["mylib.registry"]``, gets the
    module in the package's namespace.

    Args:
        full_name: Returns the name in ``sys.modules`` of a path that packaged code writes.

    >>> LoadedModules(lambda name: name)["sys"] is sys
    True
    """

    def __init__(self, full_name: Callable[[str], str]) -> None:
        self._full_name = full_name

    def __getitem__(self, name: str) -> ModuleType:
        return sys.modules[self._full(name)]

    def __setitem__(self, name: str, module: ModuleType) -> None:
        sys.modules[self._full(name)] = module

    def __delitem__(self, name: str) -> None:
        del sys.modules[self._full(name)]

    def __contains__(self, name: object) -> bool:
        return self._full(name) in sys.modules

    def __iter__(self) -> Iterator[str]:
        return iter(sys.modules)

    def __len__(self) -> int:
        return len(sys.modules)

    def copy(self) -> dict[str, ModuleType]:
        """Return a snapshot with full names (:meth:`dict.copy`)."""
        return dict(sys.modules)

    def _full(self, name: object) -> str:
        # Other types raise the same error as in sys.modules.
        return self._full_name(name) if isinstance(name, str) else name  # type: ignore[return-value]


_FRAMES_OF_AN_IMPORT = 6
"""The least number of frames that Python itself needs for each module of an import chain. modpack
adds one, and raises the recursion limit by as many: what Python can import, a package can."""
_FRAMES_OF_A_LOAD = 50


class Namespace:
    """The modules of one loaded package, and their imports.

    Args:
        name: A module path below :mod:`modpack.packages`, unique in this process.
        prefix: The prefix of module paths in ``sys.modules``: ``name + "."`` in a private
            namespace, ``""`` in the process namespace.
        source: The package file, for errors.
        index: The package's modules.
        tree: The folder with the package's files.
        importer: The importer, which modules see as ``__modpack__`` and import as
            ``torch_package_importer``.

    Attributes:
        builtins: The builtins of the package's modules.
        on_miss: Called with a module that is not in the package and may not be imported from the
            host, before that raises an error. It may add the module (:meth:`use`).
        is_unclaimed: Whether an import opened it for unpickled objects, and no importer of the user
            has claimed it yet.
        is_used: Whether objects may refer to the package's modules, builtins, or importer.
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
        self.finder = PackageFinder(source, prefix, index, tree, self._mark)
        self.builtins: dict[str, Any] = {}
        self.on_miss: Callable[[str], None] | None = None
        self.is_unclaimed = self.is_used = False
        self._importer = importer
        # A relative import with as many levels as the importing package's path has dots, less
        # this number, reaches the namespace itself.
        self._outside = prefix.count(".") - 2
        self._proxies: dict[str, ModuleProxy] = {}
        self._modules = LoadedModules(self.full_name)
        self._is_importing = self._is_large = False
        self._targets: dict[str, ImportTarget] = {}
        self._refresh_builtins()

    def _refresh_builtins(self) -> None:
        """Copy additions to the real builtins, such as those of :func:`gettext.install`."""
        # In one step, so that no other thread sees the real __import__ in them.
        fresh = vars(builtins).copy()
        fresh["__import__"], fresh[MODULES_NAME] = self.import_statement, self._modules
        self.builtins.update(fresh)

    def defer_imports(self, plan: LazyPlan) -> None:
        """Let imports of modules wait that are loaded from now on.

        Args:
            plan: Which of them may wait.
        """
        from modpack.loading.lazy import LazyImports, eager_names
        from modpack.loading.lazy_compiler import end_before_tracing

        self.builtins.update(eager_names())
        self.finder.imports = LazyImports(self, plan)
        end_before_tracing(self.finder.imports)

    def end_deferral(self, importer: object) -> None:
        """Execute the imports that wait, unless another importer has claimed the namespace."""
        if self.finder.imports is not None and self._importer is importer:
            self.finder.imports.end()

    def use(self, index: ModuleIndex) -> None:
        """Replace the index with one that has more modules."""
        self.finder.index, self._targets = index, {}
        importlib.invalidate_caches()

    def import_statement(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """Import for an import statement (the contract of :func:`__import__`)."""
        # No helper functions around the imports: each would add a stack frame for every module
        # in an import chain. No generator-based context managers: they took half of the time
        # of each import, and a module has many.
        is_outermost, has_failed, self._is_importing = not self._is_importing, False, True
        try:
            if level:
                # One dot stays inside the module's own package.
                if level > 1 and self.prefix:
                    self._require_inside(globals, level)
                try:
                    return builtins.__import__(name, globals, locals, fromlist or (), level)
                except ModuleNotFoundError as failure:
                    self._explain(failure)
                    raise
            target = self._targets.get(name) if type(name) is str else None
            if target is None:
                if name == TORCH_IMPORTER_NAME:
                    return self._importer
                if not name or not isinstance(name, str):  # raises Python's error
                    return builtins.__import__(name, globals, locals, fromlist or (), 0)
                target = self._target(name)
            full, top = target
            try:
                found = builtins.__import__(full, globals, locals, fromlist or (), 0)
            except ModuleNotFoundError as failure:
                if top is None:
                    self._explain_missing_extern(name, failure)
                else:
                    self._explain(failure)
                raise
            # ``import a.b`` binds ``a``. Python returned ``modpack``, the root of the full name.
            if top is not None and not fromlist:
                found = sys.modules[top]
            elif top is None and (self.finder.index.policy is not None or name == "modpack"):
                self._require_reach_of_parts(name, fromlist or ())
            return self._proxy(found)
        except BaseException:
            has_failed = True
            raise
        finally:
            if is_outermost:
                self._end_of_import(has_failed)

    def import_by_name(self, name: str, package: str | None = None) -> Any:
        """The redirected :func:`importlib.import_module`."""
        if name.startswith("."):
            if not package:
                return importlib.import_module(name, package)  # raises Python's error
            name = importlib.util.resolve_name(name, package)
        return self._proxy(self.load(name))

    def find_spec(self, name: str, package: str | None = None) -> ModuleSpec | None:
        """The redirected :func:`importlib.util.find_spec`, which finds the package's modules."""
        if name.startswith("."):
            if not package:
                return importlib.util.find_spec(name, package)  # raises Python's error
            name = importlib.util.resolve_name(name, package)
        self._seek(name)
        # As if it were missing, which libraries can deal with.
        if self.finder.index.is_untrusted(self.local_name(name)) and not self._is_namespace(name):
            return None
        if self._is_packaged(name):
            try:
                return importlib.util.find_spec(self.prefix + name)
            except ModuleNotFoundError as failure:
                self._explain(failure)
                raise
        return importlib.util.find_spec(name) if self._reaches_host(name) else None

    def import_module(self, name: str) -> ModuleType:
        """Import a module by the path that packaged code writes, or by its full name."""
        found: ModuleType = self.load(self.local_name(name))
        return found

    def load(self, name: str) -> Any:
        """Import a module by the absolute path that packaged code writes."""
        if name == TORCH_IMPORTER_NAME:
            return self._importer
        is_outermost, has_failed, self._is_importing = not self._is_importing, False, True
        limit = sys.getrecursionlimit()
        raised = limit + limit // _FRAMES_OF_AN_IMPORT + _FRAMES_OF_A_LOAD
        if is_outermost:
            sys.setrecursionlimit(raised)
        try:
            self._seek(name)
            if self._is_packaged(name):
                try:
                    return importlib.import_module(self.prefix + name)
                except ModuleNotFoundError as failure:
                    self._explain(failure)
                    raise
            self.require_reach(name)
            try:
                return importlib.import_module(name)
            except ModuleNotFoundError as failure:
                self._explain_missing_extern(name, failure)
                raise
        except BaseException:
            has_failed = True
            raise
        finally:
            if is_outermost:
                if sys.getrecursionlimit() == raised:  # otherwise, the module has set its own
                    sys.setrecursionlimit(limit)
                self._end_of_import(has_failed)

    def ready(self, name: str) -> ModuleType | None:
        """Return the result of :meth:`import_module` if the module is imported already, or None.

        Raises:
            ModuleNotFoundError: If packaged code may not import it.
        """
        name = self.local_name(name)
        found = sys.modules.get(self.full_name(name))
        # Another thread may still execute the module. Only a real import waits for that.
        is_initializing = getattr(getattr(found, "__spec__", None), "_initializing", False)
        if found is None or is_initializing or name == TORCH_IMPORTER_NAME:
            return None
        self.require_reach(name)
        return found

    def _proxy(self, found: Any) -> Any:
        """Return the proxy of an imported module, or the object itself if it has none."""
        name = getattr(found, "__name__", None)
        if not isinstance(name, str) or not isinstance(found, ModuleType):
            return found
        make = _PROXIED.get(name)
        if make is None:
            names = found.__dict__
            # Only importlib.metadata and copies of it have both names.
            if "packages_distributions" not in names or "MetadataPathFinder" not in names:
                return found
            make = _metadata
        if name not in self._proxies:
            self._proxies[name] = ModuleProxy(found, make(self, found), self._proxy)
        return self._proxies[name]

    def full_name(self, name: str) -> str:
        """Return the name in ``sys.modules`` of a module path that packaged code writes."""
        return self.prefix + name if self._is_packaged(name) else name

    def local_name(self, name: str) -> str:
        """Return the module path that packaged code writes for a full name."""
        return name[len(self.prefix) :] if name.startswith(self.prefix) else name

    def require_reach(self, name: str) -> None:
        """Refuse a module that is not in the package and may not be imported from the host.

        Raises:
            ModuleNotFoundError: If the module is neither.
            UntrustedImportError: If the trust policy does not allow it.
        """
        if not self._is_packaged(name) and not self._reaches_host(name):
            raise self.finder.index.make_import_error(self.finder.source, name)
        self._require_trust(name)

    def _require_trust(self, name: str) -> None:
        """Refuse an extern module that the trust policy does not allow.

        Raises:
            UntrustedImportError: If the policy does not allow it.
        """
        if self.finder.index.policy is not None and not self._is_namespace(name):
            self.finder.index.require_trust(self.finder.source, self.local_name(name))

    def _require_reach_of_parts(self, name: str, parts: Sequence[str]) -> None:
        """Refuse submodules that ``from name import part`` imported and may not import."""
        for part in parts:
            if f"{name}.{part}" in sys.modules:
                self.require_reach(f"{name}.{part}")

    def _require_inside(self, globals: Mapping[str, object] | None, level: int) -> None:
        """Refuse a relative import that leads out of the namespace, to other packages.

        Raises:
            ImportError: If it does, as Python raises for one that leads out of all packages.
        """
        package = (globals or _NOTHING).get("__package__")
        if isinstance(package, str) and self._is_own(package):
            if level > package.count(".") - self._outside:
                raise ImportError("attempted relative import beyond top-level package")

    def _is_namespace(self, name: str) -> bool:
        return name == self.prefix[:-1]

    def _target(self, name: str) -> ImportTarget:
        """Return the target of an absolute import, and cache it: modules are imported often.

        Raises:
            ModuleNotFoundError: If packaged code may not import the module.
        """
        targets = self._targets  # :meth:`use` replaces it together with the index
        self._seek(name)
        if self._is_packaged(name):
            target = ImportTarget(self.prefix + name, self.prefix + root_of(name))
        else:
            self.require_reach(name)
            target = ImportTarget(name, None)
        if type(name) is str:  # a subclass can compare equal to any name
            targets[name] = target
        return target

    def _seek(self, name: str) -> None:
        """Report a missing module to ``on_miss``, through which a self-test can supply it."""
        if self.on_miss is not None and root_of(name) not in self.finder.index.roots:
            if not self._reaches_host(name):
                self.on_miss(name)

    def _is_packaged(self, name: str) -> bool:
        return bool(self.prefix) and root_of(name) in self.finder.index.roots

    def _is_own(self, name: str) -> bool:
        """Return whether a full name belongs to this namespace."""
        if self.prefix:
            return is_within(name, self.prefix[:-1])
        return root_of(name) in self.finder.index.roots

    def _reaches_host(self, name: str) -> bool:
        return self._is_own(name) or self.finder.index.allows_host_import(name)

    def _mark(self, module: ModuleType) -> None:
        """Put the package's globals into a module before its code runs."""
        self.is_used = True
        self._refresh_builtins()
        if self._is_importing and not self._is_large:
            self._is_large = True
            raise_gc_threshold(self)
        names = vars(module)
        if type(names.get("__builtins__")) in (dict, NoneType):  # no import in the module waits
            names["__builtins__"] = self.builtins
        names.update(__modpack__=self._importer, __torch_package__=True)

    def _end_of_import(self, has_failed: bool) -> None:
        """Finish an outermost import; one in another thread may still be running."""
        self._is_importing = False
        if self._is_large:
            self._is_large = False
            restore_gc_threshold(self)
        self.finder.keep_code()
        if self.finder.imports is not None and not has_failed:  # otherwise, an error is on its way
            self.finder.imports.settle()

    def _explain_missing_extern(self, name: str, failure: ModuleNotFoundError) -> None:
        """Raise a more specific error for an import that went to the host, if there is one."""
        explained = failure
        try:
            self._explain(failure)
        except ModuleNotFoundError as better:
            explained = better
        is_extern = root_of(name) in self.finder.index.extern_roots and not self._is_own(name)
        if is_extern and explained.name is not None and is_within(name, explained.name):
            raise self.finder.index.make_extern_error(self.finder.source, name) from explained
        if explained is not failure:
            raise explained

    def _explain(self, failure: ModuleNotFoundError) -> None:
        """Raise an error that names a missing packaged module by the path that its code wrote."""
        missing = failure.name or ""
        is_explained = self.finder.source in str(failure)
        if not is_explained and self._is_own(missing) and missing != self.prefix[:-1]:
            raise self.finder.index.make_import_error(
                self.finder.source, self.local_name(missing)
            ) from failure

    def claim(self, importer: object) -> None:
        """Give the namespace to another importer of the same package.

        Classes of objects that were unpickled before are then also those of the importer.
        """
        self.is_used = True
        names, former, self._importer = self._names(), self._importer, importer
        for name in names:
            contents = getattr(sys.modules.get(name), "__dict__", {})
            if contents.get("__modpack__") is former:
                contents["__modpack__"] = importer
        self.is_unclaimed = False

    def close(self, importer: object) -> None:
        """Remove the package's modules from ``sys.modules``; later imports of them fail.

        Does nothing if another importer has claimed the namespace.
        """
        with _lock:
            if self._importer is not importer:
                return
            # The finder first: otherwise, another thread could import the removed modules again.
            if self.finder in sys.meta_path:
                sys.meta_path.remove(self.finder)
            for name in self._names():
                sys.modules.pop(name, None)
            # Python has bound the namespace as an attribute of its parent.
            getattr(sys.modules.get(PACKAGES), "__dict__", {}).pop(self.name.rpartition(".")[2], 0)
            # Reopened in this process, the classes would be other objects than those of before.
            if _open.pop(self.name, None) is not None and self.prefix:
                _closed.add(self.name)

    def _names(self) -> set[str]:
        """Return the names in ``sys.modules`` of the package's modules, replaced ones included."""
        # No function call per module: with torch there are thousands.
        loaded = list(sys.modules.items())
        importer = self._importer
        marked = {
            name
            for name, module in loaded
            if getattr(module, "__dict__", _NOTHING).get("__modpack__") is importer
        }
        if self.prefix:
            named = {name for name, _ in loaded if name.startswith(self.prefix)}
        else:  # a module may have replaced itself in sys.modules
            named = sys.modules.keys() & _sources(self.finder.index)
        return {self.name, *marked, *named}


def is_closed(name: str) -> bool:
    """Return whether this process has closed a private namespace, and not opened it again."""
    return name in _closed


def open_namespace(
    kind: str,
    name: str,
    source: str,
    index: ModuleIndex,
    tree: Path,
    importer: object,
    is_reopened: bool = False,
) -> Namespace:
    """Make a package's modules importable.

    An import can open the namespace for unpickled objects while another thread loads the package:
    the import uses the namespace that it finds, and the load claims the one of the import.

    Args:
        kind: ``"private"`` or ``"process"``.
        name: The name of the private namespace; a number is added if it is taken.
        source: The package file, for errors.
        index: The package's modules.
        tree: The folder with the package's files.
        importer: The importer, which modules see as ``__modpack__``.
        is_reopened: Whether an import opens the namespace for unpickled objects, by its exact name.

    Raises:
        NamespaceConflictError: If ``kind`` is ``"process"`` and some names are taken.
    """
    with _lock:
        if is_reopened and name in _open:
            return _open[name]
        wanted, number = name, 1
        while name in _open and not (kind == "private" and _open[name].is_unclaimed):
            number += 1
            name = f"{wanted}_{number}"
        if name in _open:  # unclaimed: an import opened it for unpickled objects
            _open[name].claim(importer)
            return _open[name]
        prefix = f"{name}." if kind == "private" else ""
        if not prefix:
            _refuse_conflicts(source, index)
        if name in sys.modules:  # the placeholder of a package that could not be reopened
            for each in [each for each in sys.modules if is_within(each, name)]:
                del sys.modules[each]
        namespace = Namespace(name, prefix, source, index, tree, importer)
        namespace.is_unclaimed = is_reopened
        sys.modules[name] = _parent_package(name, tree, importer)
        # In the process namespace, the package's modules come before the host's of the same names.
        sys.meta_path.insert(0, namespace.finder)
        _open[name] = namespace
        _closed.discard(name)
    _refresh_finders(tree)
    return namespace


def _refresh_finders(tree: Path) -> None:
    """Make Python's finders list the tree's folders again, because the tree may be a new one.

    Invalidating all finders would take longer than opening a package.
    """
    folder = str(tree)
    if folder not in _opened:  # no finder has listed it
        _opened.add(folder)
        return
    for path, finder in list(sys.path_importer_cache.items()):
        if path.startswith(folder) and isinstance(finder, FileFinder):
            finder.invalidate_caches()


def _parent_package(name: str, tree: Path, importer: object) -> ModuleType:
    package = ModuleType(name, "Private parent of a package's modules.")
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
    # A loaded module with an ``__init__`` would mix with our folder of the same name.
    folders = {m for m, entry in index.entries.items() if entry.kind is IndexEntryKind.FOLDER}
    for module in folders & index.shared:
        if module_dict(sys.modules.get(module)).get("__file__") is not None:
            taken.add(module)
    if taken:
        raise NamespaceConflictError(source, tuple(sorted(taken)))


def _sources(index: ModuleIndex) -> set[str]:
    return {m for m, entry in index.entries.items() if entry.is_code}
