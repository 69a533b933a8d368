"""One line each way, and what packaged code asks about itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any, BinaryIO

from modpack.core.plan import Plan
from modpack.errors import ModpackError
from modpack.exporter import DEFAULT_PROTOCOL, PackageExporter
from modpack.importer import PackageImporter
from modpack.resolution.importers import Importer, importer_of, sys_importer

__all__ = ["current_importer", "is_from_package", "load", "save"]

MAIN_PACKAGE, MAIN_RESOURCE = "__model__", "model.pkl"


def save(
    obj: object,
    path: str | os.PathLike[str] | BinaryIO,
    *,
    intern: str | Iterable[str] = (),
    extern: str | Iterable[str] = (),
    mock: str | Iterable[str] = (),
    deny: str | Iterable[str] = (),
    policy: str = "pinned",
    importer: Importer | Sequence[Importer] = sys_importer,
    debug: bool = False,
    pickle_protocol: int = DEFAULT_PROTOCOL,
) -> Plan:
    """Package a model, or any object, with the code that it needs.

    Args:
        obj: the model.
        path: where to write; a path or a binary file object.
        intern, extern, mock, deny: patterns of module paths. ``deny`` is asked first, then
            ``mock``, ``extern`` and ``intern``; use :class:`PackageExporter` for another order.
        policy: what happens to modules that no pattern names. ``"pinned"``: installed
            distributions are extern, all other code is interned. ``"none"``: it is an error.
        importer: where the object comes from; see :class:`PackageExporter`.
        debug: whether an error shows how each module is reached.
        pickle_protocol: 2 to 5.

    Returns:
        The plan that was carried out.

    Raises:
        PackagingError: the package cannot be written; all reasons at once.
        PicklingError: something in the object cannot be saved.
    """
    with PackageExporter(path, importer, debug) as exporter:
        for add_rule, patterns in (
            (exporter.deny, deny),
            (exporter.mock, mock),
            (exporter.extern, extern),
            (exporter.intern, intern),
        ):
            if patterns:
                add_rule(patterns)
        exporter.use_policy(policy)
        exporter.save_pickle(MAIN_PACKAGE, MAIN_RESOURCE, obj, True, pickle_protocol)
        return exporter.close()


def load(
    path: str | os.PathLike[str] | BinaryIO,
    *,
    package: str | None = None,
    resource: str | None = None,
    map_location: Any = None,
    namespace: str = "private",
) -> Any:
    """Load the object that a package is about.

    Loading a package runs the code in it: load only what you trust.

    Args:
        path: a package file, a binary file object, or the folder of an unzipped package.
        package, resource: which saved object; both or neither. By default the one that
            :func:`save` wrote, or the only one.
        map_location: where tensors go; see :func:`torch.load`.
        namespace: ``"private"`` or ``"process"``; see :class:`PackageImporter`.

    Raises:
        ModpackError: it cannot be loaded, or it is not clear which object is meant.
    """
    if (package is None) != (resource is None):
        raise TypeError("give both package and resource, or neither")
    importer = PackageImporter(path, namespace=namespace)
    if package is None or resource is None:
        package, resource = importer.main_resource()
    return importer.load_pickle(package, resource, map_location)


def is_from_package(obj: object) -> bool:
    """Whether a module, a class, a function or an object's class was loaded from a package."""
    named = obj if isinstance(getattr(obj, "__module__", None), str) else type(obj)
    name = getattr(obj, "__name__", "") if _is_module(obj) else getattr(named, "__module__", "")
    module = sys.modules.get(str(name))
    return module is not None and importer_of(module) is not None


def current_importer() -> PackageImporter:
    """The importer of the package that the calling code was loaded from.

    Raises:
        ModpackError: the caller is not packaged code.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        importer = frame.f_globals.get("__modpack__")
        if isinstance(importer, PackageImporter):
            return importer
        frame = frame.f_back
    raise ModpackError("current_importer() was called by code that no package holds")


def _is_module(obj: object) -> bool:
    return isinstance(obj, type(sys))
