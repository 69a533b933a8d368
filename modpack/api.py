"""The importer and the call signature of packaged objects, and the importer of calling code."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from modpack.core.names import namespace_of, resource_record, root_of
from modpack.core.process import calling_frames
from modpack.environment.importers import importer_of as module_importer
from modpack.errors import ModpackError

if TYPE_CHECKING:
    from modpack.core.call_signature import CallSignature
    from modpack.importer import PackageImporter

__all__ = ["call_signature", "current_importer", "importer_of", "is_from_package"]


def importer_of(obj: object) -> PackageImporter | None:
    """Return the importer of the package that an object was loaded from.

    Args:
        obj: A loaded model, one of its submodules, or its optimizer; a module, class, or function;
            or an object of a packaged class.

    Returns:
        The importer, or None if the object is not from a package, or the importer is closed.
    """
    from modpack.importer import PackageImporter, find_load, loader_of_part

    load = find_load(obj)
    if load is not None:
        return load[0]
    if isinstance(obj, ModuleType):
        modules = [obj]
    else:
        named = obj if isinstance(getattr(obj, "__module__", None), str) else type(obj)
        name = str(getattr(named, "__module__", ""))
        # A module can replace itself in sys.modules; the package's root module is still there.
        names = (name, namespace_of(name) or root_of(name))
        modules = [sys.modules[name] for name in names if name in sys.modules]
    owners = (module_importer(module) for module in modules)
    owner = next((owner for owner in owners if isinstance(owner, PackageImporter)), None)
    if owner is None:
        nn = sys.modules.get("torch.nn")
        # A model of torch's own classes can be from a package.
        if nn is not None and isinstance(obj, nn.Module):
            return loader_of_part(obj)
    return owner


def is_from_package(obj: object) -> bool:
    """Return whether :func:`importer_of` finds the importer of an object."""
    return importer_of(obj) is not None


def call_signature(path_or_model: object) -> CallSignature | None:
    """Return the arguments and outputs of a packaged object's call.

    Executes no code of the package. For a path, the package's main object is described;
    :meth:`modpack.PackageImporter.call_signature` describes the others.

    Args:
        path_or_model: A package file, the folder of an unzipped package, or a loaded model whose
            importer is open.

    Returns:
        The call signature, or None if the object was saved without example inputs or is not from
        an open package.

    Raises:
        ArchiveError: If the file is not a package, or the record of call signatures is damaged.
        ModpackError: If the package has no saved object, or several without a main one.
    """
    from modpack.importer import call_signature_of, find_call_signature

    if not isinstance(path_or_model, (str, os.PathLike)):
        return call_signature_of(path_or_model)
    from modpack.archive.reader import open_archive
    from modpack.loading.checks import find_entry

    with open_archive(path_or_model) as archive:
        return find_call_signature(archive, resource_record(*find_entry(archive)))


def current_importer() -> PackageImporter:
    """Return the importer of the package that the calling code was loaded from.

    The innermost packaged function on the call stack decides, so other code that packaged code
    calls counts as packaged.

    Raises:
        ModpackError: If no function on the stack of this thread is packaged.
    """
    from modpack.importer import PackageImporter

    for frame in calling_frames(sys._getframe(1)):
        importer = frame.f_globals.get("__modpack__")
        if isinstance(importer, PackageImporter):
            return importer
    raise ModpackError("current_importer() was called outside packaged code")
