"""Views: standard library modules that take module paths as strings, as packaged code sees them.

A view forwards everything to the real module except for the functions that would otherwise look
at the host: those look at the package first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from modpack.hermetic.metadata import METADATA_NAME, is_metadata_module, metadata_functions

if TYPE_CHECKING:
    from modpack.hermetic.redirect import Redirect

__all__ = ["View", "Views"]

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
            make = _VIEWED.get(name) or (_metadata if is_metadata_module(module) else None)
            if make is None:
                return module
            view = self._views[name] = View(module, make(self._redirect, module), self.of)
        return view
