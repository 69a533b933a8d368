"""Importers: environments of live modules, in which objects have names.

Names and contract are torch.package's: ``get_name`` returns the module path and the attribute path
that lead to exactly the given object.
"""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import FunctionType, ModuleType, SimpleNamespace
from typing import cast

from modpack.core.names import namespace_of
from modpack.errors import ObjMismatchError, ObjNotFoundError

_MISSING = object()
PASS_BOTH = "importer=[modpack.importer_of(model), modpack.sys_importer]"


def module_dict(module: object) -> Mapping[str, object]:
    """Return a module's ``__dict__``; empty for an object without one.

    Bypasses the object's class: any other access would load a lazy module
    (:class:`importlib.util.LazyLoader`).

    >>> module_dict(sys)["__name__"], module_dict(None)
    ('sys', {})
    """
    if module is None:  # the common case, which is faster without an exception
        return {}
    try:
        return cast(Mapping[str, object], object.__getattribute__(module, "__dict__"))
    except AttributeError:
        return {}


class Importer(ABC):
    """An environment that modules are imported from, and in which objects have names.

    For ``module, name = importer.get_name(obj)``, following the attributes in ``name`` from
    ``importer.import_module(module)`` leads to the same object. Otherwise, ``get_name`` raises.
    """

    @abstractmethod
    def import_module(self, module_name: str) -> ModuleType:
        """Import a module from this environment, like :func:`importlib.import_module`."""

    def get_name(self, obj: object, name: str | None = None) -> tuple[str, str]:
        """Return the module path and the attribute path of an object. Imports nothing.

        Args:
            obj: Class, function, or another object that a module binds.
            name: Attribute path in the module. Default: ``__qualname__`` or ``__name__``.

        Returns:
            The module path and the attribute path.

        Raises:
            ObjNotFoundError: If the object has no name, or is not found under it.
            ObjMismatchError: If its name leads to a different object.
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
        hint = ""
        if owner is not None:
            hint = f"The object was loaded from {owner!r}. Pass that importer too: {PASS_BOTH}."
        elif getattr(found, "_value_", None) is obj:
            hint = (
                "Before Python 3.13, a class in an enum is a member. Define it outside of the enum."
            )
        elif self is sys_importer:
            hint = (
                "The name was bound again after the object was created, for example by "
                f"importlib.reload. Re-create the object from the current {attribute}."
            )
        if found is not _MISSING or (self.has_unloaded(path) and "<locals>" not in attribute):
            other = _origin_text(found) if found is not _MISSING else repr(self)
            raise ObjMismatchError(
                f"{obj!r} claims to be {path}.{attribute}, but that is a different object, from "
                f"{other}; this one is from {_origin_text(obj)}",
                hint=hint
                or f"If another importer has this object, pass that one too: {PASS_BOTH}.",
            )
        raise ObjNotFoundError(
            f"{obj!r} is not found as {module}.{attribute}",
            hint=hint if owner is not None else _hint_for_missing_module(obj, module),
        )

    def whichmodule(self, obj: object, name: str) -> str:
        """Return the ``__module__`` of an object; overridable.

        An object without one is searched for in the importer's ``modules``, if it has them.
        """
        module = getattr(obj, "__module__", None)
        return str(module) if module else _binding_module(obj, name, getattr(self, "modules", {}))

    def loaded_module(self, module_name: str) -> ModuleType | None:
        """Return a loaded module of this environment; overridable."""
        return self.import_module(module_name)

    def has_unloaded(self, module_name: str) -> bool:
        """Return whether this environment has a module that is not loaded; overridable.

        No live object can be defined in such a module.
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
            # The dictionary first: attribute access would load a lazy module.
            bound = module_dict(found) if issubclass(type(found), ModuleType) else {}
            found = bound[part] if part in bound else getattr(found, part, _MISSING)
            if found is _MISSING:
                break
        return found


class _SysImporter(Importer):
    """The environment of this interpreter: ``sys.modules`` and ``importlib``."""

    def import_module(self, module_name: str) -> ModuleType:
        return importlib.import_module(module_name)

    def whichmodule(self, obj: object, name: str) -> str:
        module = getattr(obj, "__module__", None)
        return str(module) if module else _binding_module(obj, name, sys.modules)

    def loaded_module(self, module_name: str) -> ModuleType | None:
        module = sys.modules.get(module_name)
        # A package's module belongs to the package's importer.
        return module if importer_of(module) is None else None

    def __repr__(self) -> str:
        return "sys_importer"


sys_importer = _SysImporter()
"""The importer of the running interpreter."""


class _MismatchInOrderError(ObjMismatchError, ObjNotFoundError):
    """No importer has the object, and one has a different object under its name.

    torch.package raises ObjNotFoundError in this case.
    """


class OrderedImporter(Importer):
    """Several importers, tried in order.

    An importer that has a different object under an object's name is skipped. The returned module
    path is that of the importer that has the object itself.

    Args:
        *importers: Importers, first choice first.

    Raises:
        TypeError: If an argument is not an :class:`Importer`.
    """

    def __init__(self, *importers: Importer) -> None:
        for importer in importers:
            if not isinstance(importer, Importer):
                raise TypeError(
                    "importer must be a modpack importer (PackageImporter, sys_importer, ...), not "
                    f"{type(importer).__name__}"
                )
        self.importers = importers

    def import_module(self, module_name: str) -> ModuleType:
        failures = []
        for importer in self.importers:
            try:
                return importer.import_module(module_name)
            except ModuleNotFoundError as failure:
                # Any other ImportError comes from a module that exists, and is not caught.
                failures.append(f"{importer!r}: {failure}")
        raise ModuleNotFoundError(
            f"no importer has {module_name!r}: {'; '.join(failures) or self}", name=module_name
        )

    def get_name(self, obj: object, name: str | None = None) -> tuple[str, str]:
        return self.resolve(obj, name)[1:]

    def whichmodule(self, obj: object, name: str) -> str:
        """Return the first module path that an importer has for an object."""
        paths = (importer.whichmodule(obj, name) for importer in self.importers)
        # An importer that finds no module answers ``__main__``.
        return next((path for path in paths if path != "__main__"), "__main__")

    def loaded_module(self, module_name: str) -> ModuleType | None:
        """Return the module of the first importer that has loaded it."""
        loaded = (importer.loaded_module(module_name) for importer in self.importers)
        return next((module for module in loaded if module is not None), None)

    def has_unloaded(self, module_name: str) -> bool:
        """Return whether one of the importers has a module that is not loaded."""
        return any(importer.has_unloaded(module_name) for importer in self.importers)

    def resolve(self, obj: object, name: str | None = None) -> tuple[Importer, str, str]:
        """Return the importer that has an object, with the results of :meth:`get_name`."""
        failures: list[ObjNotFoundError | ObjMismatchError] = []
        for importer in self.importers:
            try:
                if isinstance(importer, OrderedImporter):
                    return importer.resolve(obj, name)
                return (importer, *importer.get_name(obj, name))
            except (ObjNotFoundError, ObjMismatchError) as failure:
                failures.append(failure)
        details = "; ".join(
            f"{importer!r}: {failure}"
            for importer, failure in zip(self.importers, failures, strict=True)
        )
        message = f"no importer has {obj!r}: {details or self}"
        if any(isinstance(failure, ObjMismatchError) for failure in failures):
            raise _MismatchInOrderError(message)
        raise ObjNotFoundError(message)

    def __repr__(self) -> str:
        return f"OrderedImporter({', '.join(map(repr, self.importers))})"


def _own_name(obj: object) -> str:
    """Return an object's attribute path: its name, or the string that it reduces to (PEP 307).

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
        message = f"{obj!r} has neither __qualname__ nor __name__"
        raise ObjNotFoundError(message) from failure
    return name


def _binding_module(obj: object, name: str, modules: Mapping[str, ModuleType]) -> str:
    """Return the module that binds a name to an object without ``__module__``."""
    # Like pickle's own search: ``__main__`` is the last choice, and the list is a copy, because
    # imports may add modules meanwhile.
    for module_name, module in list(modules.items()):
        if module_name not in ("__main__", "__mp_main__"):
            if module_dict(module).get(name) is obj:
                return module_name
    return "__main__"


def importer_of(module: ModuleType | None) -> Importer | None:
    """Return the package importer of a loaded module; None for other modules, or None."""
    owner = module_dict(module).get("__modpack__")
    return owner if isinstance(owner, Importer) else None


def local_path(module_name: str) -> str:
    """Return a loaded module's path within its package; the path itself without a package."""
    owner = importer_of(sys.modules.get(module_name))
    return owner.whichmodule(SimpleNamespace(__module__=module_name), "") if owner else module_name


def _hint_for_missing_module(obj: object, module: str) -> str:
    if namespace_of(module):
        return "The package that it was loaded from is closed. Save its objects before closing it."
    if not isinstance(obj, type) or module in sys.modules:
        return ""
    # The globals of a method are those of the module, wherever it has gone.
    methods = [each for each in vars(obj).values() if isinstance(each, FunctionType)]
    namespace = methods[0].__globals__ if methods else {}
    if namespace.get("__spec__") is None:
        return (
            f"Module {module!r} does not exist, because its code was run by exec. Write the code "
            "into a file on sys.path and import it from there."
        )
    return (
        f"Module {module!r} was loaded from {namespace.get('__file__')} but is not in sys.modules. "
        f"Set sys.modules[{module!r}] = module before spec.loader.exec_module(module), or use a "
        "plain import with the file's folder on sys.path."
    )


def _origin_text(obj: object) -> str:
    module = sys.modules.get(str(getattr(obj, "__module__", None)))
    file = getattr(module, "__file__", None)
    return str(file or getattr(obj, "__module__", None) or "an unknown module")
