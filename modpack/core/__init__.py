"""The shared layer: values and functions that the layers above it use.

Its modules import only each other, modpack's errors and diagnostics, and the standard library.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Final

RUNTIME_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "modpack._version": ("__version__",),
    "modpack.api": ("call_signature", "current_importer", "importer_of", "is_from_package"),
    "modpack.core.call_signature": ("CallSignature", "ContainerSpec", "ValueSpec"),
    "modpack.core.graph": ("CodeKind", "DependencyGraph", "Edge", "Location"),
    "modpack.core.hookspec": ("CallableSpec", "HookSpec"),
    "modpack.core.names": ("Directory", "GlobGroup"),
    "modpack.core.observations": ("Observations",),
    "modpack.core.plan": (
        "Decision",
        "EmptyMatchError",
        "FileKind",
        "MockUse",
        "PackagingError",
        "PackagingErrorReason",
        "Plan",
        "PlannedDistribution",
        "PlannedFile",
        "UseKind",
    ),
    "modpack.core.policy": ("Signer", "TrustPolicy"),
    "modpack.core.rules": ("Action", "Owner", "Rule", "RuleOrigin"),
    "modpack.core.scan": ("ImportKind",),
    "modpack.core.selftest": ("SelfTestCase", "SelfTestRecord"),
    "modpack.diagnostics": ("Diagnostic", "Severity"),
    "modpack.environment.importers": ("Importer", "OrderedImporter", "sys_importer"),
    "modpack.errors": (
        "EnvironmentMismatchError",
        "EnvironmentMismatchWarning",
        "ExampleError",
        "InputMismatchError",
        "ModpackError",
        "ModpackWarning",
        "ObjMismatchError",
        "ObjNotFoundError",
        "PicklingError",
        "SelfTestError",
        "SignatureError",
        "TrustError",
        "UnpicklingError",
    ),
    "modpack.examples.recorded": ("example_inputs",),
    "modpack.importer": ("PackageImporter", "load"),
    "modpack.loading.weights": ("load_weights",),
    "modpack.predicting.predictor": ("Predictor",),
}
"""The public names of modpack that loading needs, by the module that defines them."""


def define_lazily(module: str, defined_in: Mapping[str, str]) -> None:
    """Find some attributes of a module on first use.

    A module-level ``__getattr__`` is called last: an attribute that a library sets on ``object``
    would be found first. The module's class therefore looks up the names itself.

    Args:
        module: The module that runs.
        defined_in: The module that defines each name; the module itself for its submodules.
    """

    class LazyModule(ModuleType):
        def __getattribute__(self, name: str) -> object:
            if name not in defined_in:
                return super().__getattribute__(name)
            own = super().__getattribute__("__dict__")
            if name not in own:
                # An import of a submodule sets the name as well.
                value = _find(name, module, defined_in[name])
                own[name] = value
            return own[name]

        def __dir__(self) -> list[str]:
            return sorted(defined_in)

    sys.modules[module].__class__ = LazyModule


def _find(name: str, module: str, defining: str) -> object:
    if defining == module:
        return importlib.import_module(f"{module}.{name}")
    from modpack.core.process import gc_paused

    # Imported objects live long. Without a pause, a collection of all of torch's objects, 85 ms,
    # can happen in this import or the next one (benchmark rows import-1000 and first-load).
    with gc_paused(keeps_all=True):
        return getattr(importlib.import_module(defining), name)
