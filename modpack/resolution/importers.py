"""Importers: environments of live modules, in which objects have names.

The names and the contract are torch.package's: ``get_name`` tells under which module path
and attribute path an object can be found again, and finds nothing else.
"""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from types import ModuleType

from modpack.errors import ObjMismatchError, ObjNotFoundError
from modpack.resolution.live import contents_of

__all__ = ["Importer", "OrderedImporter", "importer_of", "sys_importer"]

_MISSING = object()


class Importer(ABC):
    """An environment that modules are imported from, and objects are named in.

    For every object: ``module, name = importer.get_name(obj)`` and then
    ``importer.import_module(module)`` followed attribute by attribute along ``name`` gives
    the same object, or ``get_name`` raises.
    """

    @abstractmethod
    def import_module(self, module_name: str) -> ModuleType:
        """Import a module from this environment; the contract of importlib.import_module."""

    def get_name(self, obj: object, name: str | None = None) -> tuple[str, str]:
        """Tell how an object is found in this environment. Imports nothing.

        Args:
            obj: a class, a function, or another object that lives in a module.
            name: its attribute path in the module; its ``__qualname__`` or ``__name__`` if
                None.

        Returns:
            The module path and the attribute path.

        Raises:
            ObjNotFoundError: it is not found under its name, or it has none.
            ObjMismatchError: something else is found there.
        """
        attribute = name or getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None)
        if not isinstance(attribute, str):
            raise ObjNotFoundError(f"{obj!r} has neither __qualname__ nor __name__ to find it by")
        module = self.whichmodule(obj, attribute)
        found = self._lookup(module, attribute)
        if found is _MISSING:
            raise ObjNotFoundError(f"{obj!r} is not found as {module}.{attribute}{_hint(obj)}")
        if found is not obj:
            raise ObjMismatchError(
                f"{obj!r} says that it is {module}.{attribute}, but that is another object, "
                f"from {_place(found)}; this one is from {_place(obj)}. If it comes from a "
                "package, put that package's importer first: importer=[package, sys_importer]"
            )
        return module, attribute

    def whichmodule(self, obj: object, name: str) -> str:
        """The module path that an object says it lives in; overridable."""
        return str(getattr(obj, "__module__", None) or "__main__")

    def loaded_module(self, module_name: str) -> ModuleType | None:
        """A module of this environment if it is loaded already; overridable."""
        return self.import_module(module_name)

    def _lookup(self, module: str, attribute: str) -> object:
        try:
            found: object = self.loaded_module(module)
        except ImportError:
            return _MISSING
        if found is None:
            return _MISSING
        for part in attribute.split("."):
            bound = contents_of(found) if issubclass(type(found), ModuleType) else {}
            found = bound[part] if part in bound else getattr(found, part, _MISSING)
            if found is _MISSING:
                break
        return found


class _SysImporter(Importer):
    """The environment of Python itself: ``sys.modules`` and ``importlib``."""

    def import_module(self, module_name: str) -> ModuleType:
        return importlib.import_module(module_name)

    def whichmodule(self, obj: object, name: str) -> str:
        module = getattr(obj, "__module__", None)
        return str(module) if module else _module_holding(obj, name)

    def loaded_module(self, module_name: str) -> ModuleType | None:
        module = sys.modules.get(module_name)
        if module is not None and importer_of(module) is not None:
            return None  # it belongs to a package: its own importer answers for it
        return module

    def __repr__(self) -> str:
        return "sys_importer"


sys_importer = _SysImporter()
"""The importer of the running interpreter."""


class OrderedImporter(Importer):
    """Several importers, asked in order; the first that has the answer wins.

    An importer that knows another object under the name does not have the answer: the next
    one is asked. The module path that is returned is then that of the importer in which the
    very object was found.

    Args:
        *importers: the importers, first choice first.

    Raises:
        TypeError: one of them is no :class:`Importer`.
    """

    def __init__(self, *importers: Importer) -> None:
        for importer in importers:
            if not isinstance(importer, Importer):
                raise TypeError(
                    "OrderedImporter takes modpack importers (PackageImporter, sys_importer, ...), "
                    f"not {type(importer).__name__}"
                )
        self.importers = importers

    def import_module(self, module_name: str) -> ModuleType:
        failures = []
        for importer in self.importers:
            try:
                return importer.import_module(module_name)
            except ModuleNotFoundError as failure:
                failures.append(f"{importer!r}: {failure}")
        raise ModuleNotFoundError(
            f"no importer has {module_name!r}: " + "; ".join(failures), name=module_name
        )

    def get_name(self, obj: object, name: str | None = None) -> tuple[str, str]:
        return self.resolve(obj, name)[1:]

    def resolve(self, obj: object, name: str | None = None) -> tuple[Importer, str, str]:
        """Like :meth:`get_name`, with the importer in which the object was found."""
        failures: list[ObjNotFoundError | ObjMismatchError] = []
        for importer in self.importers:
            try:
                return (importer, *importer.get_name(obj, name))
            except (ObjNotFoundError, ObjMismatchError) as failure:
                failures.append(failure)
        text = f"no importer knows {obj!r}: " + "; ".join(
            f"{importer!r}: {failure}"
            for importer, failure in zip(self.importers, failures, strict=True)
        )
        if any(isinstance(failure, ObjMismatchError) for failure in failures):
            raise ObjMismatchError(text)
        raise ObjNotFoundError(text)

    def __repr__(self) -> str:
        return f"OrderedImporter({', '.join(map(repr, self.importers))})"


def _module_holding(obj: object, name: str) -> str:
    """The loaded module that binds a name to an object which does not say where it lives."""
    for module_name, module in list(sys.modules.items()):
        if module_name not in ("__main__", "__mp_main__"):
            if contents_of(module).get(name) is obj:
                return module_name
    return "__main__"


def importer_of(module: ModuleType) -> Importer | None:
    """The package importer that a loaded module came from; None for ordinary modules."""
    owner = contents_of(module).get("__modpack__")
    return owner if isinstance(owner, Importer) else None


def _hint(obj: object) -> str:
    """What to do about an object that a package's importer would know."""
    module = sys.modules.get(str(getattr(obj, "__module__", None)))
    owner = importer_of(module) if module is not None else None
    if owner is None:
        return ""
    return f". It was loaded from {owner!r}: name that one too, importer=[package, sys_importer]"


def _place(obj: object) -> str:
    module = sys.modules.get(str(getattr(obj, "__module__", None)))
    file = getattr(module, "__file__", None)
    return str(file or getattr(obj, "__module__", None) or "an unknown place")
