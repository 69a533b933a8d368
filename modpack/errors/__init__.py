"""Every error that modpack raises on purpose.

All of them derive from :class:`ModpackError` and carry their facts as fields, so that a
caller can act on them; the text is made from the fields, for people. An error that has a
natural counterpart among Python's own exceptions derives from that one too.
"""

from __future__ import annotations

from modpack.errors.base import ModpackError, ModpackWarning
from modpack.errors.files import (
    ArchiveError,
    CacheError,
    NotAPackageError,
    PackageNotFoundError,
    RecordNotFoundError,
    RepackedError,
    TargetError,
    UnsupportedVersionError,
)
from modpack.errors.objects import (
    DeviceNotFoundError,
    ObjMismatchError,
    ObjNotFoundError,
    PicklingError,
    UnpicklingError,
)
from modpack.errors.surroundings import (
    CompiledModuleError,
    DisallowedModuleError,
    EnvironmentMismatchError,
    EnvironmentMismatchWarning,
    ExternNotFoundError,
    NamespaceConflictError,
    OperatorConflictError,
    OperatorNotFoundError,
    PlatformMismatchError,
)
from modpack.errors.trials import ExampleError, TrialError
from modpack.errors.trust import (
    KeyFileError,
    PolicyError,
    PolicyNotFoundError,
    SignatureError,
    TrustError,
    UntrustedImportError,
)

__all__ = [
    "ArchiveError",
    "CacheError",
    "CompiledModuleError",
    "DeviceNotFoundError",
    "DisallowedModuleError",
    "EnvironmentMismatchError",
    "EnvironmentMismatchWarning",
    "ExampleError",
    "ExternNotFoundError",
    "KeyFileError",
    "ModpackError",
    "ModpackWarning",
    "NamespaceConflictError",
    "NotAPackageError",
    "ObjMismatchError",
    "ObjNotFoundError",
    "OperatorConflictError",
    "OperatorNotFoundError",
    "PackageNotFoundError",
    "PicklingError",
    "PlatformMismatchError",
    "PolicyError",
    "PolicyNotFoundError",
    "RecordNotFoundError",
    "RepackedError",
    "SignatureError",
    "TargetError",
    "TrialError",
    "TrustError",
    "UnpicklingError",
    "UnsupportedVersionError",
    "UntrustedImportError",
]

for _name in __all__:
    globals()[_name].__module__ = __name__  # where users, tracebacks and pickles look for it
