"""A user's own :class:`Importer` as an environment that modules are taken from."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from types import ModuleType

from modpack.core.location import CodeKind, Location
from modpack.resolution.importers import Importer

__all__ = ["ImportedEnvironment"]


class ImportedEnvironment:
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

    def live_home(self, module: str, name: str) -> str | None:
        """Unknown: the importer's modules are imported one by one, when they are asked for."""
        return None

    def loaded(self) -> Collection[str]:
        """Unknown as well."""
        return ()

    def lacks(self, module: str) -> bool:
        """Nothing is ruled out."""
        return False

    @property
    def is_package(self) -> bool:
        """Whether it lacks what it does not have, or only has not been asked."""
        return False

    def _get(self, module: str) -> ModuleType | None:
        try:
            return self._importer.import_module(module)
        except ModuleNotFoundError:
            return None
