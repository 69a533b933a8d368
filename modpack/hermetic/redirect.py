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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from modpack.core.names import is_within, root_of
from modpack.errors import ExternNotFoundError
from modpack.hermetic.index import ANCESTOR_NAME, EntryKind, ModuleIndex

__all__ = ["Redirect"]

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


class Redirect:
    """The imports of one namespace.

    Args:
        source: the package file, for errors.
        prefix: what goes before the package's module paths, or ``""`` for real names.
        index: the package's modules.
        importer: what ``import torch_package_importer`` gives to packaged code.
        adopt: makes a module that is loaded by its file import as packaged code does.
    """

    def __init__(
        self,
        source: str,
        prefix: str,
        index: ModuleIndex,
        importer: object,
        adopt: Callable[[ModuleSpec | None], ModuleSpec | None],
    ) -> None:
        self.adopt = adopt
        self._source = source
        self._prefix = prefix
        self._index = index
        self._importer = importer
        self._views: dict[str | None, _View] = {}
        self.builtins: dict[str, Any] = {}
        self.refresh_builtins()

    def refresh_builtins(self) -> None:
        """Take over what was added to the real builtins (:func:`gettext.install` does that)."""
        # In one step: another thread must never find the real __import__ in there.
        self.builtins.update({**vars(builtins), "__import__": self.import_statement})

    def import_statement(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """What an import statement calls (the contract of :func:`__import__`)."""
        if level:
            with self._explaining():
                return builtins.__import__(name, globals, locals, fromlist or (), level)
        if name == ANCESTOR_NAME:
            return self._importer
        if not name or not isinstance(name, str):
            return builtins.__import__(name, globals, locals, fromlist or (), 0)  # its own error
        # No helper functions around the imports: each would be a frame on the stack more for
        # every module in a chain of imports.
        if self._is_packaged(name):
            with self._explaining():
                found = builtins.__import__(self._prefix + name, globals, locals, fromlist or (), 0)
            return found if fromlist else sys.modules[self._prefix + root_of(name)]
        with self._reaching_host(name):
            found = builtins.__import__(name, globals, locals, fromlist or (), 0)
        return self._view(found)

    def import_module(self, name: str, package: str | None = None) -> Any:
        """The redirected :func:`importlib.import_module`."""
        if name.startswith("."):
            with self._explaining():
                return importlib.import_module(name, package and self.translated(package))
        return self._view(self.load(name))

    def find_spec(self, name: str, package: str | None = None) -> ModuleSpec | None:
        """The redirected :func:`importlib.util.find_spec`: knows what the package knows."""
        if name.startswith("."):
            return importlib.util.find_spec(name, package and self.translated(package))
        if self._is_packaged(name):
            with self._explaining():
                return importlib.util.find_spec(self._prefix + name)
        return importlib.util.find_spec(name) if self._reaches_host(name) else None

    def load(self, name: str) -> Any:
        """Import a module by the absolute path that packaged code writes."""
        if name == ANCESTOR_NAME:
            return self._importer
        if self._is_packaged(name):
            with self._explaining():
                return importlib.import_module(self._prefix + name)
        with self._reaching_host(name):
            return importlib.import_module(name)

    def translated(self, name: str) -> str:
        """The name in ``sys.modules`` of a module path that packaged code writes."""
        return self._prefix + name if self._is_packaged(name) else name

    def untranslated(self, name: str) -> str:
        """The module path that packaged code writes for a name in ``sys.modules``."""
        return name[len(self._prefix) :] if name.startswith(self._prefix) else name

    def require_reach(self, name: str) -> None:
        """Refuse a module path that is neither the package's nor one that it may take from here.

        Raises:
            ModuleNotFoundError: tells the remedy.
        """
        if not self._is_packaged(name) and not self._reaches_host(name):
            raise self._absent(name)

    def _is_packaged(self, name: str) -> bool:
        return bool(self._prefix) and root_of(name) in self._index.roots

    def _is_own(self, name: str) -> bool:
        """Whether a full name is one of this namespace."""
        if self._prefix:
            return is_within(name, self._prefix[:-1])
        return root_of(name) in self._index.roots

    def _reaches_host(self, name: str) -> bool:
        return self._is_own(name) or self._index.allows_host(name)

    @contextmanager
    def _reaching_host(self, name: str) -> Iterator[None]:
        """Let an import out to the host, if it may go there, and tell what is missing there."""
        if not self._reaches_host(name):
            raise self._absent(name)
        try:
            with self._explaining():
                yield
        except ModuleNotFoundError as failure:
            is_extern = root_of(name) in self._index.extern_roots and not self._is_own(name)
            if is_extern and failure.name is not None and is_within(name, failure.name):
                raise self._extern_absent(name) from failure
            raise

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Tell what is missing from the package by the path that its code wrote."""
        try:
            yield
        except ModuleNotFoundError as failure:
            missing = failure.name or ""
            told = self._source in str(failure)
            if told or not self._is_own(missing) or missing == self._prefix[:-1]:
                raise
            raise self._absent(self.untranslated(missing)) from failure

    def _absent(self, name: str) -> ModuleNotFoundError:
        entry = self._index.find(name)
        if entry is not None and entry.kind is EntryKind.EXTERN:
            return self._extern_absent(name)
        if root_of(name) in self._index.roots:
            return ModuleNotFoundError(
                f"No module named {name!r} in {self._source}, although it holds other modules "
                f"of {root_of(name)!r}. Remedy: intern or extern {name!r} when exporting",
                name=name,
            )
        return ModuleNotFoundError(
            f"No module named {name!r} for code of {self._source}: it was neither interned, "
            "externed nor mocked when the package was made, so it is not taken from here "
            f"either. Remedy: intern or extern {name!r} when exporting",
            name=name,
        )

    def _extern_absent(self, name: str) -> ExternNotFoundError:
        return ExternNotFoundError(self._source, name, self._index.requirement(name))

    def _view(self, module: Any) -> Any:
        """The view of a standard library module that takes module paths as strings."""
        name = getattr(module, "__name__", None)
        make = _VIEWED.get(name) if isinstance(name, str) else None
        if make is None or not isinstance(module, ModuleType):
            return module
        if name not in self._views:
            self._views[name] = _View(module, make(self, module), self._view)
        return self._views[name]


class _View(ModuleType):
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


_VIEWED: dict[str, Callable[[Redirect, ModuleType], dict[str, object]]] = {
    "importlib": _importlib,
    "importlib.resources": _importlib_resources,
    "importlib.util": _importlib_util,
    "pkgutil": _pkgutil,
}
"""The standard library modules that packaged code sees through a view. One row each."""
