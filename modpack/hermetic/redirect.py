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
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from modpack.core.names import is_within, root_of
from modpack.errors import ExternNotFoundError
from modpack.hermetic.index import ModuleIndex

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
_ANCESTOR_NAME = "torch_package_importer"


class Redirect:
    """The imports of one namespace.

    Args:
        source: the package file, for errors.
        prefix: what goes before the package's module paths, or ``""`` for real names.
        index: the package's modules.
        importer: what ``import torch_package_importer`` gives to packaged code.
    """

    def __init__(self, source: str, prefix: str, index: ModuleIndex, importer: object) -> None:
        self._source = source
        self._prefix = prefix
        self._index = index
        self._importer = importer
        self._views: dict[str, _View] = {}
        self.builtins: dict[str, Any] = {**vars(builtins), "__import__": self.import_statement}

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
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        if name == _ANCESTOR_NAME:
            return self._importer
        if self._is_packaged(name):
            return self._import_packaged(name, globals, locals, fromlist)
        self._import_host(name)
        found = builtins.__import__(name, globals, locals, fromlist or (), 0)
        return self._view(found.__name__, found)

    def import_module(self, name: str, package: str | None = None) -> Any:
        """The redirected :func:`importlib.import_module`."""
        if name.startswith("."):
            return importlib.import_module(name, package and self.translated(package))
        if name == _ANCESTOR_NAME:
            return self._importer
        if self._is_packaged(name):
            return self._load(name)
        self._import_host(name)
        return self._view(name, sys.modules[name])

    def find_spec(self, name: str, package: str | None = None) -> ModuleSpec | None:
        """The redirected :func:`importlib.util.find_spec`: knows what the package knows."""
        if name.startswith("."):
            return importlib.util.find_spec(name, package and self.translated(package))
        if self._is_packaged(name):
            return importlib.util.find_spec(self._prefix + name)
        return importlib.util.find_spec(name) if self._reaches_host(name) else None

    def translated(self, name: str) -> str:
        """The name in ``sys.modules`` of a module path that packaged code writes."""
        return self._prefix + name if self._is_packaged(name) else name

    def _is_packaged(self, name: str) -> bool:
        return bool(self._prefix) and root_of(name) in self._index.roots

    def _reaches_host(self, name: str) -> bool:
        own = self._prefix and is_within(name, self._prefix[:-1])
        real = not self._prefix and root_of(name) in self._index.roots
        return bool(own or real or self._index.allows_host(name))

    def _import_packaged(
        self,
        name: str,
        globals: Mapping[str, object] | None,
        locals: Mapping[str, object] | None,
        fromlist: Sequence[str] | None,
    ) -> Any:
        self._load(name)
        if fromlist:
            return builtins.__import__(self._prefix + name, globals, locals, fromlist, 0)
        return sys.modules[self._prefix + root_of(name)]

    def _load(self, name: str) -> ModuleType:
        try:
            return importlib.import_module(self._prefix + name)
        except ModuleNotFoundError as failure:
            missing = failure.name or ""
            if not missing.startswith(self._prefix) or isinstance(failure, ExternNotFoundError):
                raise
            local = missing[len(self._prefix) :]
            raise ModuleNotFoundError(
                f"No module named {local!r} in {self._source}, although it holds other modules "
                f"of {root_of(local)!r}. Remedy: intern or extern {local!r} when exporting",
                name=local,
            ) from failure

    def _import_host(self, name: str) -> None:
        if not self._reaches_host(name):
            raise ModuleNotFoundError(
                f"No module named {name!r} for code of {self._source}: it was neither interned, "
                "externed nor mocked when the package was made, so it is not taken from here "
                f"either. Remedy: intern or extern {name!r} when exporting",
                name=name,
            )
        if name in sys.modules:
            return
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as failure:
            if failure.name is None or not is_within(name, failure.name):
                raise
            if self._prefix and is_within(name, self._prefix[:-1]):
                raise
            requirement = self._index.externs.get(name) or self._index.externs.get(root_of(name))
            raise ExternNotFoundError(self._source, name, requirement) from failure

    def _view(self, name: str, module: Any) -> Any:
        """The view of a standard library module that takes module paths as strings."""
        if not self._prefix:
            return module
        make = _VIEWED.get(name)
        if make is None:
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
        view: Callable[[str, object], object],
    ) -> None:
        super().__init__(real.__name__, real.__doc__)
        vars(self).update(replaced, __modpack_real__=real, __modpack_view__=view)

    def __getattr__(self, name: str) -> Any:
        value = getattr(vars(self)["__modpack_real__"], name)
        if isinstance(value, ModuleType):
            return vars(self)["__modpack_view__"](value.__name__, value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        setattr(vars(self)["__modpack_real__"], name, value)

    def __dir__(self) -> list[str]:
        return dir(vars(self)["__modpack_real__"])


def _translating(redirect: Redirect, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose first argument may be a packaged module path."""

    def translated(anchor: Any = None, *arguments: Any, **options: Any) -> Any:
        if anchor is None:
            anchor = sys._getframe(1).f_globals["__name__"]
        place = redirect.translated(anchor) if isinstance(anchor, str) else anchor
        return function(place, *arguments, **options)

    return translated


def _importlib(redirect: Redirect, module: ModuleType) -> dict[str, object]:
    return {
        "import_module": redirect.import_module,
        "__import__": redirect.import_statement,
    }


def _importlib_util(redirect: Redirect, module: ModuleType) -> dict[str, object]:
    return {"find_spec": redirect.find_spec}


def _importlib_resources(redirect: Redirect, module: ModuleType) -> dict[str, object]:
    return {
        name: _translating(redirect, getattr(module, name))
        for name in _RESOURCE_FUNCTIONS
        if hasattr(module, name)
    }


def _pkgutil(redirect: Redirect, module: ModuleType) -> dict[str, object]:
    return {
        name: _translating(redirect, getattr(module, name))
        for name in ("find_loader", "get_data", "get_loader", "resolve_name")
        if hasattr(module, name)
    }


_VIEWED: dict[str, Callable[[Redirect, ModuleType], dict[str, object]]] = {
    "importlib": _importlib,
    "importlib.resources": _importlib_resources,
    "importlib.util": _importlib_util,
    "pkgutil": _pkgutil,
}
"""The standard library modules that packaged code sees through a view. One row each."""
