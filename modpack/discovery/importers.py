"""Importers: environments of live modules, in which objects have names.

The names and the contract are torch.package's: ``get_name`` tells under which module path
and attribute path an object can be found again, and finds nothing else.

A user's own :class:`Importer` as an environment that modules are taken from.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from types import FunctionType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, cast

from modpack.errors import ObjMismatchError, ObjNotFoundError

if TYPE_CHECKING:
    from modpack.core.graph import Location

_MISSING = object()
_ANOTHER_IMPORTER = (
    ". If another importer has it, name that one too: importer=[package, sys_importer]"
)


def contents_of(module: object) -> Mapping[str, object]:
    """What a module binds; empty for an object in ``sys.modules`` that keeps nothing.

    Asks the object itself and not its class: a lazily loaded module
    (:class:`importlib.util.LazyLoader`) would load on any other question.

    >>> contents_of(sys)["__name__"], contents_of(None)
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
        owner = _package_of(obj)
        path = module if owner is None else owner.whichmodule(obj, attribute)
        if found is _MISSING and path != module:
            found = self._lookup(path, attribute)
        if found is not _MISSING or (self.has_unloaded(path) and "<locals>" not in attribute):
            other = _place(found) if found is not _MISSING else repr(self)
            raise ObjMismatchError(
                f"{obj!r} says that it is {path}.{attribute}, but that is another object, "
                f"from {other}; this one is from {_place(obj)}{_hint(owner) or _ANOTHER_IMPORTER}"
            )
        hint = _hint(owner) or _how_to_be_found(obj, module)
        raise ObjNotFoundError(f"{obj!r} is not found as {module}.{attribute}{hint}")

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
        return str(module) if module else _binding_module(obj, name, sys.modules)

    def loaded_module(self, module_name: str) -> ModuleType | None:
        module = sys.modules.get(module_name)
        if module is not None and importer_of(module) is not None:
            return None  # it belongs to a package: its own importer answers for it
        return module

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
            if contents_of(module).get(name) is obj:
                return module_name
    return "__main__"


def importer_of(module: ModuleType) -> Importer | None:
    """The package importer that a loaded module came from; None for ordinary modules."""
    owner = contents_of(module).get("__modpack__")
    return owner if isinstance(owner, Importer) else None


def local_path(module_name: str) -> str:
    """A loaded module's path as its own package knows it; without a package, the path itself."""
    module = sys.modules.get(module_name)
    owner = importer_of(module) if module is not None else None
    return owner.whichmodule(SimpleNamespace(__module__=module_name), "") if owner else module_name


def _package_of(obj: object) -> Importer | None:
    """The package importer that an object was loaded from."""
    module = sys.modules.get(str(getattr(obj, "__module__", None)))
    return importer_of(module) if module is not None else None


def _hint(owner: Importer | None) -> str:
    """What to do about an object that a package's importer would know."""
    if owner is None:
        return ""
    return f". It was loaded from {owner!r}: name that one too, importer=[package, sys_importer]"


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


class ImportedEnvironment:
    """Asks an importer for its modules: the one kind of environment that has to import them.

    Args:
        importer: an importer that modpack knows nothing else about.
    """

    def __init__(self, importer: Importer) -> None:
        self._importer = importer

    def locate(self, module: str) -> Location | None:
        """Find a module by importing it; None if the importer does not have it."""
        from modpack.core.graph import CodeKind, Location  # loading does without

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
