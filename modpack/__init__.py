"""modpack turns a live PyTorch model into one file: the code it needs, its weights, its hooks.

Names are resolved on first use (PEP 562): importing modpack imports neither torch nor
anything else that is slow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modpack import analyze as analyze
    from modpack import hooks as hooks
    from modpack._version import __version__ as __version__
    from modpack.api import current_importer as current_importer
    from modpack.api import importer_of as importer_of
    from modpack.api import is_from_package as is_from_package
    from modpack.api import load as load
    from modpack.api import save as save
    from modpack.core.names import Directory as Directory
    from modpack.core.names import GlobGroup as GlobGroup
    from modpack.core.plan import EmptyMatchError as EmptyMatchError
    from modpack.core.plan import PackagingError as PackagingError
    from modpack.core.plan import PackagingErrorReason as PackagingErrorReason
    from modpack.core.plan import Plan as Plan
    from modpack.core.policy import Signer as Signer
    from modpack.core.policy import TrustPolicy as TrustPolicy
    from modpack.core.rules import Action as Action
    from modpack.diagnostics import Diagnostic as Diagnostic
    from modpack.diagnostics import Severity as Severity
    from modpack.discovery.importers import Importer as Importer
    from modpack.discovery.importers import OrderedImporter as OrderedImporter
    from modpack.discovery.importers import sys_importer as sys_importer
    from modpack.errors import EnvironmentMismatchError as EnvironmentMismatchError
    from modpack.errors import EnvironmentMismatchWarning as EnvironmentMismatchWarning
    from modpack.errors import ExampleError as ExampleError
    from modpack.errors import ModpackError as ModpackError
    from modpack.errors import ModpackWarning as ModpackWarning
    from modpack.errors import ObjMismatchError as ObjMismatchError
    from modpack.errors import ObjNotFoundError as ObjNotFoundError
    from modpack.errors import PicklingError as PicklingError
    from modpack.errors import SelfTestError as SelfTestError
    from modpack.errors import SignatureError as SignatureError
    from modpack.errors import TrustError as TrustError
    from modpack.errors import UnpicklingError as UnpicklingError
    from modpack.exporter import PackageExporter as PackageExporter
    from modpack.importer import PackageImporter as PackageImporter
    from modpack.loading.weights import load_weights as load_weights
    from modpack.selftest.self_test import SelfTestResult as SelfTestResult
    from modpack.selftest.self_test import self_test as self_test

_HOME_OF = {
    "Action": "modpack.core.rules",
    "Diagnostic": "modpack.diagnostics",
    "Directory": "modpack.core.names",
    "EmptyMatchError": "modpack.core.plan",
    "EnvironmentMismatchError": "modpack.errors",
    "EnvironmentMismatchWarning": "modpack.errors",
    "ExampleError": "modpack.errors",
    "GlobGroup": "modpack.core.names",
    "Importer": "modpack.discovery.importers",
    "ModpackError": "modpack.errors",
    "ModpackWarning": "modpack.errors",
    "ObjMismatchError": "modpack.errors",
    "ObjNotFoundError": "modpack.errors",
    "OrderedImporter": "modpack.discovery.importers",
    "PackageExporter": "modpack.exporter",
    "PackageImporter": "modpack.importer",
    "PackagingError": "modpack.core.plan",
    "PackagingErrorReason": "modpack.core.plan",
    "PicklingError": "modpack.errors",
    "Plan": "modpack.core.plan",
    "SelfTestResult": "modpack.selftest.self_test",
    "Severity": "modpack.diagnostics",
    "SignatureError": "modpack.errors",
    "Signer": "modpack.core.policy",
    "SelfTestError": "modpack.errors",
    "TrustError": "modpack.errors",
    "TrustPolicy": "modpack.core.policy",
    "UnpicklingError": "modpack.errors",
    "__version__": "modpack._version",
    "analyze": "modpack",
    "current_importer": "modpack.api",
    "hooks": "modpack",
    "importer_of": "modpack.api",
    "is_from_package": "modpack.api",
    "load": "modpack.api",
    "load_weights": "modpack.loading.weights",
    "self_test": "modpack.selftest.self_test",
    "save": "modpack.api",
    "sys_importer": "modpack.discovery.importers",
}
"""The module that defines each public name."""

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'modpack' has no attribute {name!r}")
    home = _HOME_OF[name]
    if home == "modpack":  # a module of its own
        return importlib.import_module(f"modpack.{name}")
    from modpack.core.process import gc_paused

    # What an import makes stays. Otherwise a search of all that torch has made, 85 ms, may fall
    # into the import or into the next one (benchmark rows import-1000 and first-load).
    with gc_paused():
        value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return __all__
