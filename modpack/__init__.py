"""modpack turns a live PyTorch model into one file: the code it needs, its weights, its hooks.

Names are resolved on first use (PEP 562): importing modpack imports neither torch nor
anything else that is slow.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from modpack._version import __version__

if TYPE_CHECKING:
    from modpack import analyze as analyze
    from modpack import hooks as hooks
    from modpack.api import current_importer, importer_of, is_from_package, load, save
    from modpack.core.names import Directory, GlobGroup
    from modpack.core.plan import (
        EmptyMatchError,
        PackagingError,
        PackagingErrorReason,
        Plan,
        Problem,
    )
    from modpack.core.policy import Signer, TrustPolicy
    from modpack.core.rules import Action
    from modpack.discovery.importers import Importer, OrderedImporter, sys_importer
    from modpack.errors import (
        EnvironmentMismatchError,
        EnvironmentMismatchWarning,
        ExampleError,
        ModpackError,
        ModpackWarning,
        ObjMismatchError,
        ObjNotFoundError,
        PicklingError,
        SignatureError,
        TrialError,
        TrustError,
        UnpicklingError,
    )
    from modpack.exporter import PackageExporter
    from modpack.importer import PackageImporter
    from modpack.loading.weights import load_weights
    from modpack.selftest.self_test import Replay, replay

__all__ = [
    "Action",
    "Directory",
    "EmptyMatchError",
    "EnvironmentMismatchError",
    "EnvironmentMismatchWarning",
    "ExampleError",
    "GlobGroup",
    "Importer",
    "ModpackError",
    "ModpackWarning",
    "ObjMismatchError",
    "ObjNotFoundError",
    "OrderedImporter",
    "PackageExporter",
    "PackageImporter",
    "PackagingError",
    "PackagingErrorReason",
    "PicklingError",
    "Plan",
    "Problem",
    "Replay",
    "SignatureError",
    "Signer",
    "TrialError",
    "TrustError",
    "TrustPolicy",
    "UnpicklingError",
    "__version__",
    "analyze",
    "current_importer",
    "hooks",
    "importer_of",
    "is_from_package",
    "load",
    "load_weights",
    "replay",
    "save",
    "sys_importer",
]

_HOMES = {
    "modpack.loading.weights": ("load_weights",),
    "modpack.api": (
        "current_importer",
        "importer_of",
        "is_from_package",
        "load",
        "save",
    ),
    "modpack.core.rules": ("Action",),
    "modpack.core.names": (
        "Directory",
        "GlobGroup",
    ),
    "modpack.core.plan": (
        "EmptyMatchError",
        "PackagingError",
        "PackagingErrorReason",
        "Plan",
        "Problem",
    ),
    "modpack.core.policy": (
        "Signer",
        "TrustPolicy",
    ),
    "modpack.errors": (
        "EnvironmentMismatchError",
        "EnvironmentMismatchWarning",
        "ExampleError",
        "ModpackError",
        "ModpackWarning",
        "ObjMismatchError",
        "ObjNotFoundError",
        "PicklingError",
        "SignatureError",
        "TrialError",
        "TrustError",
        "UnpicklingError",
    ),
    "modpack.exporter": ("PackageExporter",),
    "modpack.importer": ("PackageImporter",),
    "modpack.selftest.self_test": (
        "Replay",
        "replay",
    ),
    "modpack.discovery.importers": (
        "Importer",
        "OrderedImporter",
        "sys_importer",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_SAVING = (
    "modpack.exporter",
    "modpack.exporting.hook_saver",
    "modpack.exporting.objects",
    "modpack.exporting.tensor_index",
    "modpack.pickling.pickler",
    "modpack.pickling.storages",
    "modpack.pickling.object_paths",
)
_LOADING = ("modpack.importer", "modpack.loading.objects")
_FOR_OBJECTS = {
    "PackageExporter": _SAVING,
    "PackageImporter": _LOADING,
    "save": _SAVING,
    "load": _LOADING,
}
"""What is imported with a name where torch is there: what every object needs, so that not the first
save or load of a process waits for it. Where it is not there, nobody has an object yet."""


def __getattr__(name: str) -> object:
    if name in ("analyze", "hooks"):
        return importlib.import_module(f"modpack.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'modpack' has no attribute {name!r}")
    from modpack.core.process import collection_paused

    with collection_paused():  # what an import makes stays, and one search for garbage takes 70 ms
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
        for module in _FOR_OBJECTS.get(name, ()) if "torch" in sys.modules else ():
            importlib.import_module(module)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
