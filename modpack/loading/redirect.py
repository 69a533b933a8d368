"""Imports made by packaged code: sent to the package, or let out to the host.

Packaged modules get builtins of their own with this ``__import__``; the statement
``import mylib`` then finds the packaged ``mylib``, whatever the host has under that name. The
functions of the standard library that take module paths as strings get the same treatment,
through views: what packaged code imports as ``importlib`` forwards everything to the real one
except for those functions.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from modpack.archive.module_index import ANCESTOR_NAME, MODULES_NAME, ModuleIndex, Way
from modpack.core.names import is_within, root_of
from modpack.core.process import begin_collecting_rarely, end_collecting_rarely

if TYPE_CHECKING:
    from modpack.loading.metadata import VisibleDistributions

METADATA_NAME = "packages_distributions"
"""What is in :mod:`importlib.metadata`, in its copies, and hardly anywhere else."""

_RESOURCE_FUNCTIONS = (
    "contents",
    "files",
    "is_resource",
    "open_binary",
    "open_text",
    "path",
    "read_binary",
    "read_text",
)


class View(ModuleType):
    """A module that forwards to another, except for some names."""

    def __init__(
        self,
        real: ModuleType,
        replaced: Mapping[str, object],
        view: Callable[[object], object],
    ) -> None:
        super().__init__(real.__name__, real.__doc__)
        for name in ("__spec__", "__loader__", "__package__"):
            vars(self)[name] = getattr(real, name, None)
        vars(self).update(replaced, __modpack_real__=real, __modpack_view__=view)

    def __getattr__(self, name: str) -> Any:
        return vars(self)["__modpack_view__"](getattr(vars(self)["__modpack_real__"], name))

    def __setattr__(self, name: str, value: object) -> None:
        setattr(vars(self)["__modpack_real__"], name, value)

    def __dir__(self) -> list[str]:
        return dir(vars(self)["__modpack_real__"])


def _translating(redirect: Redirect, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose first argument may be a packaged module path."""

    def translated(anchor: Any = None, *arguments: Any, **options: Any) -> Any:
        if anchor is None:
            anchor = sys._getframe(1).f_globals["__name__"]
        if isinstance(anchor, str):
            redirect.require_reach(anchor.partition(":")[0])
            anchor = redirect.translated(anchor)
        return function(anchor, *arguments, **options)

    return translated


def _importlib(redirect: Redirect, module: ModuleType) -> dict[str, object]:
    return {
        "import_module": redirect.import_module,
        "__import__": redirect.import_statement,
    }


def _importlib_util(redirect: Redirect, module: Any) -> dict[str, object]:
    def spec_from_file_location(*arguments: Any, **options: Any) -> ModuleSpec | None:
        return redirect.adopt(module.spec_from_file_location(*arguments, **options))

    return {"find_spec": redirect.find_spec, "spec_from_file_location": spec_from_file_location}


def _importlib_resources(redirect: Redirect, module: ModuleType) -> dict[str, object]:
    return {
        name: _translating(redirect, getattr(module, name))
        for name in _RESOURCE_FUNCTIONS
        if hasattr(module, name)
    }


def _pkgutil(redirect: Redirect, module: ModuleType) -> dict[str, object]:
    translating: dict[str, object] = {
        name: _translating(redirect, getattr(module, name))
        for name in ("find_loader", "get_data", "get_loader", "resolve_name")
        if hasattr(module, name)
    }
    return {**translating, "walk_packages": _walking(redirect, module)}


def _walking(redirect: Redirect, module: Any) -> Callable[..., Iterator[Any]]:
    """:func:`pkgutil.walk_packages`, which imports what it finds under the prefix it is given."""

    def walk_packages(
        path: Iterable[str] | None = None, prefix: str = "", onerror: Any = None
    ) -> Iterator[Any]:
        place = redirect.translated(prefix)
        for found in module.walk_packages(path, place, onerror):
            name = found.name if place == prefix else redirect.untranslated(found.name)
            yield found._replace(name=name)

    return walk_packages


def _metadata(redirect: Redirect, module: ModuleType) -> dict[str, object]:
    from modpack.loading.metadata import metadata_functions

    return metadata_functions(redirect.visible_distributions(module), module)


_VIEWED: dict[str, Callable[[Redirect, ModuleType], dict[str, object]]] = {
    "importlib": _importlib,
    "importlib.resources": _importlib_resources,
    "importlib.util": _importlib_util,
    "pkgutil": _pkgutil,
}
"""The standard library modules that packaged code sees through a view. One row each."""


class Views:
    """The views of one namespace.

    Args:
        redirect: the imports of the namespace.
    """

    def __init__(self, redirect: Redirect) -> None:
        self._redirect = redirect
        self._views: dict[str, View] = {}

    def of(self, module: Any) -> Any:
        """What packaged code sees of a module, or of whatever else an import gives."""
        name = getattr(module, "__name__", None)
        if not isinstance(name, str) or not isinstance(module, ModuleType):
            return module
        # Asked after each import statement, and hardly any module has one: hence no calls.
        if name not in _VIEWED and METADATA_NAME not in module.__dict__:
            return module
        view = self._views.get(name)
        if view is None:
            is_metadata = "MetadataPathFinder" in module.__dict__
            make = _VIEWED.get(name) or (_metadata if is_metadata else None)
            if make is None:
                return module
            view = self._views[name] = View(module, make(self._redirect, module), self.of)
        return view


class LoadedModules(MutableMapping[str, ModuleType]):
    """Forwards to ``sys.modules``; a path of the package leads to the package's module.

    Code that looks itself up by its literal name, ``sys.modules["mylib.registry"]``, gets the
    module that it means, which lives in the package's namespace.

    Args:
        translated: gives the full name for a path that packaged code writes.

    >>> LoadedModules(lambda name: name)["sys"] is sys
    True
    """

    def __init__(self, translated: Callable[[str], str]) -> None:
        self._translated = translated

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
        """A snapshot with full names (:meth:`dict.copy`)."""
        return dict(sys.modules)

    def _full(self, name: object) -> str:
        # Whatever is no string gets the error that sys.modules gives.
        return self._translated(name) if isinstance(name, str) else name  # type: ignore[return-value]


class Redirect:
    """The imports of one namespace.

    Args:
        source: the package file, for errors.
        prefix: what goes before the package's module paths, or ``""`` for real names.
        index: the package's modules.
        importer: what ``import torch_package_importer`` gives to packaged code.
        adopt: makes a module that is loaded by its file import as packaged code does.
        tree: the folder with the package's files.

    Attributes:
        on_miss: told of modules that are neither in the package nor may come from here, before
            that is an error; it may add them (:meth:`use`).
        on_imported: called when an import of the package's own modules, with all those that it
            led to, has come to its end.
    """

    def __init__(
        self,
        source: str,
        prefix: str,
        index: ModuleIndex,
        importer: object,
        adopt: Callable[[ModuleSpec | None], ModuleSpec | None],
        tree: Path,
    ) -> None:
        self._tree = tree
        self.adopt = adopt
        self._source = source
        self._prefix = prefix
        self._index = index
        self._importer = importer
        self._view = Views(self).of
        self._modules = LoadedModules(self.translated)
        self._is_importing = self._is_large = False
        self._ways: dict[str, Way] = {}
        self.on_miss: Callable[[str], None] | None = None
        self.on_imported: Callable[[], None] | None = None
        self.builtins: dict[str, Any] = {}
        self.refresh_builtins()

    def refresh_builtins(self) -> None:
        """Take over what was added to the real builtins (:func:`gettext.install` does that)."""
        # In one step: another thread must never find the real __import__ in there.
        fresh = vars(builtins).copy()
        fresh["__import__"], fresh[MODULES_NAME] = self.import_statement, self._modules
        self.builtins.update(fresh)

    def use(self, index: ModuleIndex) -> None:
        """From now on, this is what the package holds."""
        self._index, self._ways = index, {}

    def import_statement(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """What an import statement calls (the contract of :func:`__import__`)."""
        # No helper functions around the imports: each would be a frame on the stack more for
        # every module in a chain of imports. No generators as context managers either: these
        # took half of the time of each import, and a module has many.
        is_outermost, self._is_importing = not self._is_importing, True
        try:
            if level:
                try:
                    return builtins.__import__(name, globals, locals, fromlist or (), level)
                except ModuleNotFoundError as failure:
                    self._explain(failure)
                    raise
            way = self._ways.get(name) if type(name) is str else None
            if way is None:
                if name == ANCESTOR_NAME:
                    return self._importer
                if not name or not isinstance(name, str):  # its error
                    return builtins.__import__(name, globals, locals, fromlist or (), 0)
                way = self._way(name)
            full, top = way
            try:
                found = builtins.__import__(full, globals, locals, fromlist or (), 0)
            except ModuleNotFoundError as failure:
                if top is None:
                    self._explain_absence_here(name, failure)
                else:
                    self._explain(failure)
                raise
            if top is not None and not fromlist:
                found = sys.modules[top]
            elif top is None and self._index.policy is not None:
                self._require_trust_in_parts(name, fromlist or ())
            return self._view(found)
        finally:
            if is_outermost:
                self._end_of_import()

    def import_module(self, name: str, package: str | None = None) -> Any:
        """The redirected :func:`importlib.import_module`."""
        if name.startswith("."):
            if not package:
                return importlib.import_module(name, package)  # its own error
            name = importlib.util.resolve_name(name, package)
        return self._view(self.load(name))

    def find_spec(self, name: str, package: str | None = None) -> ModuleSpec | None:
        """The redirected :func:`importlib.util.find_spec`: knows what the package knows."""
        if name.startswith("."):
            if not package:
                return importlib.util.find_spec(name, package)  # its own error
            name = importlib.util.resolve_name(name, package)
        self._seek(name)
        if self._index.is_untrusted(self.untranslated(name)) and not self._is_namespace(name):
            return None
        if self._is_packaged(name):
            try:
                return importlib.util.find_spec(self._prefix + name)
            except ModuleNotFoundError as failure:
                self._explain(failure)
                raise
        return importlib.util.find_spec(name) if self._reaches_host(name) else None

    def load(self, name: str) -> Any:
        """Import a module by the absolute path that packaged code writes."""
        if name == ANCESTOR_NAME:
            return self._importer
        is_outermost, self._is_importing = not self._is_importing, True
        try:
            self._seek(name)
            if self._is_packaged(name):
                try:
                    return importlib.import_module(self._prefix + name)
                except ModuleNotFoundError as failure:
                    self._explain(failure)
                    raise
            self._require_way_out(name)
            try:
                return importlib.import_module(name)
            except ModuleNotFoundError as failure:
                self._explain_absence_here(name, failure)
                raise
        finally:
            if is_outermost:
                self._end_of_import()

    def ready(self, name: str) -> ModuleType | None:
        """What :meth:`load` gives if that is imported already, without what an import needs.

        Raises:
            ModuleNotFoundError: packaged code may not have it.
        """
        found = sys.modules.get(self.translated(name))
        is_being_made = getattr(getattr(found, "__spec__", None), "_initializing", False)
        if found is None or is_being_made or name == ANCESTOR_NAME:
            return None
        if not self._is_packaged(name):
            self._require_way_out(name)
        return found

    def translated(self, name: str) -> str:
        """The name in ``sys.modules`` of a module path that packaged code writes."""
        return self._prefix + name if self._is_packaged(name) else name

    def untranslated(self, name: str) -> str:
        """The module path that packaged code writes for a name in ``sys.modules``."""
        return name[len(self._prefix) :] if name.startswith(self._prefix) else name

    def visible_distributions(self, module: ModuleType) -> VisibleDistributions:
        """The distributions that packaged code sees, as objects of a metadata module."""
        from modpack.loading.metadata import VisibleDistributions

        return VisibleDistributions(module, lambda: self._index, self._tree, self.load)

    def require_reach(self, name: str) -> None:
        """Refuse a module path that is neither the package's nor one that it may take from here.

        Raises:
            ModuleNotFoundError: tells the remedy.
        """
        if not self._is_packaged(name) and not self._reaches_host(name):
            raise self._index.absent(self._source, name)
        self._require_trust(name)

    def _require_trust(self, name: str) -> None:
        """Refuse what would come from outside and the loader's policy does not allow.

        Raises:
            UntrustedImportError: tells the remedy.
        """
        if self._index.policy is not None and not self._is_namespace(name):
            self._index.require_trust(self._source, self.untranslated(name))

    def _require_trust_in_parts(self, name: str, parts: Sequence[str]) -> None:
        """The same for modules that ``from name import part`` has brought in as parts."""
        for part in parts:
            if f"{name}.{part}" in sys.modules:
                self._require_trust(f"{name}.{part}")

    def _is_namespace(self, name: str) -> bool:
        return name == self._prefix[:-1]

    def _way(self, name: str) -> Way:
        """Where an absolute import leads; remembered, for one module is imported by many.

        Raises:
            ModuleNotFoundError: packaged code may not go there.
        """
        ways = self._ways  # those of the index that is asked now
        self._seek(name)
        if self._is_packaged(name):
            way = Way(self._prefix + name, self._prefix + root_of(name))
        else:
            self._require_way_out(name)
            way = Way(name, None)
        if type(name) is str:  # what derives from it may be equal to anything
            ways[name] = way
        return way

    def _seek(self, name: str) -> None:
        """Tell of a module that is neither the package's nor one that it takes from here.

        A trial run can then supply it; elsewhere nobody listens.
        """
        if self.on_miss is not None and root_of(name) not in self._index.roots:
            if not self._reaches_host(name):
                self.on_miss(name)

    def _is_packaged(self, name: str) -> bool:
        return bool(self._prefix) and root_of(name) in self._index.roots

    def _is_own(self, name: str) -> bool:
        """Whether a full name is one of this namespace."""
        if self._prefix:
            return is_within(name, self._prefix[:-1])
        return root_of(name) in self._index.roots

    def _reaches_host(self, name: str) -> bool:
        return self._is_own(name) or self._index.allows_host(name)

    def note_new_module(self) -> None:
        """Told of each module whose code is about to run."""
        self.refresh_builtins()
        if self._is_importing and not self._is_large:
            self._is_large = True
            begin_collecting_rarely(self)

    def _end_of_import(self) -> None:
        """Tell that an import has come to its end; one in another thread may still be running."""
        self._is_importing = False
        if self._is_large:
            self._is_large = False
            end_collecting_rarely(self)
        if self.on_imported is not None:
            self.on_imported()

    def _require_way_out(self, name: str) -> None:
        """Refuse an import that may not go to the host."""
        if not self._reaches_host(name):
            raise self._index.absent(self._source, name)
        self._require_trust(name)

    def _explain_absence_here(self, name: str, failure: ModuleNotFoundError) -> None:
        """Raise what tells more about an import that went to the host, if there is more to tell."""
        explained = failure
        try:
            self._explain(failure)
        except ModuleNotFoundError as better:
            explained = better
        is_extern = root_of(name) in self._index.extern_roots and not self._is_own(name)
        if is_extern and explained.name is not None and is_within(name, explained.name):
            raise self._index.not_found(self._source, name) from explained
        if explained is not failure:
            raise explained

    def _explain(self, failure: ModuleNotFoundError) -> None:
        """Raise what tells what is missing from the package by the path that its code wrote."""
        missing = failure.name or ""
        told = self._source in str(failure)
        if not told and self._is_own(missing) and missing != self._prefix[:-1]:
            raise self._index.absent(self._source, self.untranslated(missing)) from failure
