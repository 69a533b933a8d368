"""How a package is opened: all that is checked before anything of it is used."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from modpack.archive.externs import read_externs
from modpack.archive.layout import is_internal
from modpack.archive.manifest import contents_digest, package_digest
from modpack.archive.reader import RecordReader, open_archive
from modpack.core.environment import RecordedEnvironment
from modpack.core.garbage import collection_paused
from modpack.core.names import resource_record
from modpack.core.trust import TrustPolicy
from modpack.errors import DisallowedModuleError
from modpack.hermetic.index import Entry, ModuleIndex
from modpack.hermetic.namespace import open_namespace
from modpack.hermetic.tree import unpack
from modpack.report.recorded import environment_of
from modpack.resolution.importers import Importer
from modpack.unpacking.checking import require_contents
from modpack.unpacking.entry import find_namespace
from modpack.unpacking.environment import (
    check_environment,
    compare_environment,
    missing_externs,
    refuse_other_platforms,
)
from modpack.unpacking.records import ZipReader
from modpack.unpacking.trusting import require_trust

__all__ = ["OpenPackage"]


class OpenPackage(Importer):
    """The state of an importer, all of it; its parts derive from this and add methods only.

    Args:
        file_or_buffer: a package file, a binary file object, the folder of an unzipped package, or
            an open ``torch._C.PyTorchFileReader``.
        module_allowed: asked for each extern module whether it may be used.
        namespace: in which namespace it is loaded; None for the one that it says.
        strict: whether to refuse what was made with other versions than those that are here.
        policy: what the package may ask for; None for anything.
        verify: what is compared with its digests: ``"code"`` or ``"all"``.

    Attributes:
        filename: the package as the user named it.
        extern_modules: the modules that it takes from here.
        zip_reader: its records under the names that torch gives to their reader.
        hook_handles: torch's handles of the hooks that the latest loads registered, by name.
        hooks: those hooks themselves.
    """

    def __init__(
        self,
        file_or_buffer: str | os.PathLike[str] | BinaryIO | RecordReader,
        module_allowed: Callable[[str], bool],
        namespace: str | None,
        strict: bool,
        policy: TrustPolicy | None,
        verify: str,
    ) -> None:
        self._given, self._policy, self._verify = file_or_buffer, policy, verify
        self._archive = open_archive(file_or_buffer)
        try:
            with collection_paused(), self._archive.keeping():
                self._open(module_allowed, namespace, strict)
        except BaseException:
            self._archive.close()
            raise

    def _open(
        self, module_allowed: Callable[[str], bool], namespace: str | None, strict: bool
    ) -> None:
        self.filename = self._archive.source
        digest = self._verified_digest()
        self.extern_modules = read_externs(self._archive)
        _refuse_disallowed(self.filename, self.extern_modules, module_allowed)
        if self._policy is not None:
            require_trust(self._archive, self._policy, self._given)
        recorded = environment_of(self._archive, None)
        refuse_other_platforms(self.filename, recorded)
        missing = self._check_environment(recorded, digest, strict)
        sizes = {n: size for n, size in self._archive.sizes().items() if not is_internal(n)}
        self._index = ModuleIndex.build(
            sizes,
            self._requirements(recorded),
            recorded.knows_distributions,
            missing,
            self._policy,
        )
        self._tree = self._unpacked(sizes)
        self._namespace = open_namespace(
            find_namespace(self._archive) if namespace is None else namespace,
            digest,
            self.filename,
            self._index,
            self._tree,
            self,
        )
        self.zip_reader = ZipReader(self._archive)
        self.hook_handles: dict[str, Any] = {}
        self.hooks: dict[str, Any] = {}

    def _unpacked(self, sizes: dict[str, int]) -> Path:
        """The folder with the package's files."""
        digest = contents_digest(self._archive, sizes)
        return unpack(digest, sizes, self._archive.read, Path(self.filename).name)

    def _check_environment(
        self, recorded: RecordedEnvironment, digest: str, strict: bool
    ) -> Mapping[str, str | None]:
        """Compare what the package was made with to what is here; returns what is missing."""
        comparison = compare_environment(self._archive, recorded, self.extern_modules)
        check_environment(self.filename, digest, comparison, strict)
        return missing_externs(comparison.missing)

    def _requirements(self, recorded: RecordedEnvironment) -> dict[str, str | None]:
        """The extern modules with what to give to pip for each."""
        providers = {module: recorded.provider_of(module) for module in self.extern_modules}
        return {m: found.requirement if found else None for m, found in providers.items()}

    def _verified_digest(self) -> str:
        """Check the contents, and return the package's digest."""
        require_contents(self._archive, self._verify)
        return package_digest(self._archive)

    def _record(self, package: object, resource: object) -> str:
        """The record of a resource; its package may be a module, or the name that one carries."""
        name = package.__name__ if isinstance(package, ModuleType) else package
        local = self._namespace.local_name(name) if isinstance(name, str) else None
        return resource_record(name if local is None else local, resource)

    def _entry(self, module: str) -> Entry | None:
        local = self._namespace.local_name(module)
        return self._index.find(module if local is None else local)


def _refuse_disallowed(
    source: str, externs: list[str], module_allowed: Callable[[str], bool]
) -> None:
    refused = tuple(module for module in externs if not module_allowed(module))
    if refused:
        raise DisallowedModuleError(source, refused)
