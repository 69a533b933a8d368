"""The importer: open, check, import, unpickle.

:class:`PackageImporter` has torch.package's names, and reads torch.package's archives as well
as modpack's own. How a package is opened is in :mod:`~modpack.importer.opening`. What can be done
with it then is in three parts: :mod:`~modpack.importer.code`, :mod:`~modpack.importer.objects` and
:mod:`~modpack.importer.files`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import BinaryIO

from modpack.archive.manifest import read_manifest
from modpack.archive.reader import RecordReader
from modpack.core.arguments import require_type
from modpack.core.trust import TrustPolicy
from modpack.errors import ArchiveError
from modpack.hermetic.namespace import NAMESPACES
from modpack.importer.code import ImporterCode
from modpack.importer.files import ImporterFiles
from modpack.importer.objects import ImporterObjects
from modpack.unpacking.checking import level_of
from modpack.unpacking.trusting import require_policy

__all__ = ["PackageImporter"]


class PackageImporter(ImporterCode, ImporterObjects, ImporterFiles):
    """Loads code and objects from a package.

    Loading a package runs the code in it: load only what you trust. Opening one does not: the
    archive's structure is checked, the records that hold code and pickles are compared with
    their digests, and the code is unpacked into the cache. Code runs when something is
    imported or unpickled.

    Packaged modules are real files that Python imports itself. In the private namespace
    (default) they live under a package of their own, named by the package's digest, so that
    packages never meet each other or what is installed. In the process namespace they have
    their real names, for code that looks itself up by them. In neither is an interned module
    ever taken from the host.

    Args:
        file_or_buffer: a package file, a binary file object, the folder of an unzipped package, or
            an open ``torch._C.PyTorchFileReader``.
        module_allowed: asked for each extern module whether it may be used.
        namespace: ``"private"`` or ``"process"``; None for the one in which the package's trial
            found that it works, which is private unless it says otherwise.
        strict: whether to refuse a package that was made with other versions than those that are
            here: of Python, torch and the extern modules' distributions, or on another platform.
            If not, there is one :class:`modpack.EnvironmentMismatchWarning` for each package,
            unless only the last number of Python's version or the label of a local build differs.
        policy: what the package may ask for; checked before anything of it runs, and again by each
            import and each name in a pickle. It is not a sandbox.
        verify: what is compared with its digests before anything is used: ``"code"`` for all but
            the tensors, which are mapped and not read; ``"all"`` for the tensors too, which takes
            as long as to read them. What the policy says counts if it is more.

    Attributes:
        hook_handles: torch's handles of the hooks that the latest loads registered, by name.
        hooks: those hooks themselves: their closures and attributes hold their state.

    Raises:
        TypeError, ValueError: an argument is none of these.
        ArchiveError: it is no package, or a damaged one.
        DisallowedModuleError: ``module_allowed`` refused a module.
        TrustError, SignatureError: it asks for what the policy does not allow, or the signature
            that the policy demands is missing or does not hold.
        EnvironmentMismatchError: ``strict``, and something differs; names all of it.
        PlatformMismatchError: it holds compiled modules that cannot run here.
        NamespaceConflictError: real names are asked for, but some are taken.
        CacheError: there is no place to unpack the code into.
    """

    def __init__(
        self,
        file_or_buffer: str | os.PathLike[str] | BinaryIO | RecordReader,
        module_allowed: Callable[[str], bool] = lambda module_name: True,
        *,
        namespace: str | None = "private",
        strict: bool = False,
        policy: TrustPolicy | None = None,
        verify: str = "code",
    ) -> None:
        _require_arguments(file_or_buffer, module_allowed, namespace)
        require_type(strict, bool, "strict", "a bool")
        require_policy(policy)
        level = level_of(verify, policy)
        super().__init__(file_or_buffer, module_allowed, namespace, strict, policy, level)

    def close(self) -> None:
        """Forget the package: its modules leave ``sys.modules``, its file is closed.

        What was loaded keeps working as long as it imports nothing more.
        """
        self._forget_loaded()
        self._namespace.close()
        self._archive.close()

    def __enter__(self) -> PackageImporter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PackageImporter({self.filename!r})"

    def _repr_html_(self) -> str | None:
        """What notebooks show: what the package holds. Runs nothing of it."""
        from modpack.report.archived import facts_of
        from modpack.report.notebook import package_html

        try:
            return package_html(facts_of(self._archive, read_manifest(self._archive)))
        except ArchiveError:  # closed, or unreadable: what repr() says must do
            return None


def _require_arguments(file_or_buffer: object, module_allowed: object, namespace: object) -> None:
    is_opened = hasattr(file_or_buffer, "read") or isinstance(file_or_buffer, RecordReader)
    if not isinstance(file_or_buffer, (str, os.PathLike)) and not is_opened:
        raise TypeError(
            "file_or_buffer must be a path or a binary file object, "
            f"not {type(file_or_buffer).__name__}"
        )
    if not callable(module_allowed):
        raise TypeError(f"module_allowed must be callable, not {type(module_allowed).__name__}")
    if namespace is None:
        return
    if not isinstance(namespace, str):
        raise TypeError(f"namespace must be str, not {type(namespace).__name__}")
    if namespace not in NAMESPACES:
        raise ValueError(f"namespace must be 'private' or 'process', not {namespace!r}")
