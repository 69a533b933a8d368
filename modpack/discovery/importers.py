"""Importers: environments of live modules, in which objects have names.

The names and the contract are torch.package's: ``get_name`` tells under which module path
and attribute path an object can be found again, and finds nothing else.
"""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import FunctionType, ModuleType, SimpleNamespace
from typing import cast

from modpack.errors import ObjMismatchError, ObjNotFoundError

_MISSING = object()
_BOTH = "importer=[package, sys_importer]"


def module_dict(module: object) -> Mapping[str, object]:
    """What a module binds; empty for an object in ``sys.modules`` that keeps nothing.

    Asks the object itself and not its class: a lazily loaded module
    (:class:`importlib.util.LazyLoader`) would load on any other question.

    >>> module_dict(sys)["__name__"], module_dict(None)
    ('sys', {})
    """
    if module is None:  # most of what is asked for is not loaded, and failing takes its time
        return {}
    try:
        return cast(Mapping[str, object], object.__getattribute__(module, "__dict__"))
    except AttributeError:
        return {}


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
        attribute = name or _own_name(obj)
        module = self.whichmodule(obj, attribute)
        found = self._lookup(module, attribute)
        if found is obj:
            return module, attribute
        owner = importer_of(sys.modules.get(str(getattr(obj, "__module__", None))))
        path = module if owner is None else owner.whichmodule(obj, attribute)
        if found is _MISSING and path != module:
            found = self._lookup(path, attribute)
        remedy = ""
        if owner is not None:
            remedy = f". It was loaded from {owner!r}: name that one too, {_BOTH}"
        if found is not _MISSING or (self.has_unloaded(path) and "<locals>" not in attribute):
            other = _place(found) if found is not _MISSING else repr(self)
            remedy = remedy or f". If another importer has it, name that one too: {_BOTH}"
            raise ObjMismatchError(
                f"{obj!r} says that it is {path}.{attribute}, but that is another object, "
                f"from {other}; this one is from {_place(obj)}{remedy}"
            )
        remedy = remedy or _how_to_be_found(obj, module)
        raise ObjNotFoundError(f"{obj!r} is not found as {module}.{attribute}{remedy}")

    def whichmodule(self, obj: object, name: str) -> str:
        """The module path that an object says it lives in; overridable.

        An object that does not say so is looked for in ``modules``, if the importer has that.
        """
        carried = getattr(obj, "__module__", None)
        return str(carried) if carried else _binding_module(obj, name, getattr(self, "modules", {}))

    def loaded_module(self, module_name: str) -> ModuleType | None:
        """A module of this environment if it is loaded already; overridable."""
        return self.import_module(module_name)

    def has_unloaded(self, module_name: str) -> bool:
        """Whether this environment has a module of its own that is not loaded; overridable.

        No live object can be the one that is found in it.
        """
        return False

    def _lookup(self, module: str, attribute: str) -> object:
        try:
            found: object = self.loaded_module(module)
        except ImportError:
            return _MISSING
        if found is None:
            return _MISSING
        for part in attribute.split("."):
            bound = module_dict(found) if issubclass(type(found), ModuleType) else {}
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
        return str(module) if module else _binding_module(obj, name, sys.modules)

    def loaded_module(self, module_name: str) -> ModuleType | None:
        module = sys.modules.get(module_name)
        # One that belongs to a package: its own importer answers for it.
        return module if importer_of(module) is None else None

    def __repr__(self) -> str:
        return "sys_importer"


sys_importer = _SysImporter()
"""The importer of the running interpreter."""


class _MismatchInOrderError(ObjMismatchError, ObjNotFoundError):
    """No importer has the object, and one has another; torch.package says not found."""


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
            f"no importer has {module_name!r}: {'; '.join(failures) or self}", name=module_name
        )

    def get_name(self, obj: object, name: str | None = None) -> tuple[str, str]:
        return self.resolve(obj, name)[1:]

    def whichmodule(self, obj: object, name: str) -> str:
        """The first module path that an importer knows for an object."""
        paths = (importer.whichmodule(obj, name) for importer in self.importers)
        return next((path for path in paths if path != "__main__"), "__main__")

    def loaded_module(self, module_name: str) -> ModuleType | None:
        """The module of the first importer that has loaded it."""
        loaded = (importer.loaded_module(module_name) for importer in self.importers)
        return next((module for module in loaded if module is not None), None)

    def has_unloaded(self, module_name: str) -> bool:
        """Whether the module is there, and not loaded, in one of the importers."""
        return any(importer.has_unloaded(module_name) for importer in self.importers)

    def resolve(self, obj: object, name: str | None = None) -> tuple[Importer, str, str]:
        """Like :meth:`get_name`, with the importer in which the object was found."""
        failures: list[ObjNotFoundError | ObjMismatchError] = []
        for importer in self.importers:
            try:
                if isinstance(importer, OrderedImporter):
                    return importer.resolve(obj, name)
                return (importer, *importer.get_name(obj, name))
            except (ObjNotFoundError, ObjMismatchError) as failure:
                failures.append(failure)
        told = "; ".join(
            f"{importer!r}: {failure}"
            for importer, failure in zip(self.importers, failures, strict=True)
        )
        text = f"no importer knows {obj!r}: {told or self}"
        if any(isinstance(failure, ObjMismatchError) for failure in failures):
            raise _MismatchInOrderError(text)
        raise ObjNotFoundError(text)

    def __repr__(self) -> str:
        return f"OrderedImporter({', '.join(map(repr, self.importers))})"


def _own_name(obj: object) -> str:
    """The attribute path that an object has for itself; some objects reduce to it (PEP 307).

    Raises:
        ObjNotFoundError: If it has none.
    """
    name = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None)
    failure = None
    if not isinstance(name, str) and type(obj).__reduce__ is not object.__reduce__:
        try:
            name = obj.__reduce__()
        except Exception as raised:  # an object's own method may raise anything
            failure = raised
    if not isinstance(name, str):
        text = f"{obj!r} has neither __qualname__ nor __name__ to find it by"
        raise ObjNotFoundError(text) from failure
    return name


def _binding_module(obj: object, name: str, modules: Mapping[str, ModuleType]) -> str:
    """The module that binds a name to an object which does not say where it lives."""
    for module_name, module in list(modules.items()):
        if module_name not in ("__main__", "__mp_main__"):
            if module_dict(module).get(name) is obj:
                return module_name
    return "__main__"


def importer_of(module: ModuleType | None) -> Importer | None:
    """The package importer that a loaded module came from; None for ordinary modules, and None."""
    owner = module_dict(module).get("__modpack__")
    return owner if isinstance(owner, Importer) else None


def local_path(module_name: str) -> str:
    """A loaded module's path as its own package knows it; without a package, the path itself."""
    owner = importer_of(sys.modules.get(module_name))
    return owner.whichmodule(SimpleNamespace(__module__=module_name), "") if owner else module_name


def _how_to_be_found(obj: object, module: str) -> str:
    """What to do about a class of a module that is not in ``sys.modules``."""
    if not isinstance(obj, type) or module in sys.modules:
        return ""
    made = [each for each in vars(obj).values() if isinstance(each, FunctionType)]
    names = made[0].__globals__ if made else {}
    if names.get("__spec__") is None:
        return (
            f": there is no module {module!r}, its code was run by exec. Remedy: write the code "
            "into a file on sys.path, and import it from there"
        )
    return (
        f": {module!r} was loaded from {names.get('__file__')} but is not in sys.modules. Remedy: "
        f"sys.modules[{module!r}] = module before spec.loader.exec_module(module), or a plain "
        "import with the file's folder on sys.path"
    )


def _place(obj: object) -> str:
    module = sys.modules.get(str(getattr(obj, "__module__", None)))
    file = getattr(module, "__file__", None)
    return str(file or getattr(obj, "__module__", None) or "an unknown place")
