"""What an importer reads of a package without running anything: its files, and what it says."""

from __future__ import annotations

from types import ModuleType

from modpack.archive import layout
from modpack.core.directory import Directory
from modpack.core.globs import GlobPattern
from modpack.core.names import package_folder, require_module_name
from modpack.hermetic.finder import FolderResources
from modpack.importer.opening import OpenPackage
from modpack.unpacking.entry import find_namespace

__all__ = ["ImporterFiles"]


class ImporterFiles(OpenPackage):
    """The part of an importer that reads records."""

    def load_binary(self, package: str | ModuleType, resource: str) -> bytes:
        """The bytes of a resource; see :meth:`load_text`.

        Raises:
            RecordNotFoundError: there is no such resource.
        """
        return self._archive.read(self._record(package, resource))

    def load_text(
        self,
        package: str | ModuleType,
        resource: str,
        encoding: str = "utf-8",
        errors: str = "strict",
    ) -> str:
        """The text of a resource.

        Args:
            package: the package that the resource belongs to: its path, or the loaded module.
            resource: its name.
            encoding: how to decode it.
            errors: what to do with bytes that cannot be decoded; see :meth:`bytes.decode`.

        Raises:
            RecordNotFoundError: there is no such resource.
            UnicodeDecodeError: it is no text in that encoding.
        """
        for argument, value in (("encoding", encoding), ("errors", errors)):
            if not isinstance(value, str):
                raise TypeError(f"{argument} must be str, not {type(value).__name__}")
        return self.load_binary(package, resource).decode(encoding, errors)

    def file_structure(
        self, *, include: GlobPattern = "**", exclude: GlobPattern = ()
    ) -> Directory:
        """The files of the package as a tree.

        Args:
            include: patterns over paths; ``*`` within a component, ``**`` across.
            exclude: patterns for files to leave out.
        """
        return Directory.of(self.filename, self._archive.names(), include, exclude)

    def get_resource_reader(self, fullname: str) -> FolderResources | None:
        """The resources of a package, for :mod:`importlib.resources`; None for an unknown one."""
        name = require_module_name(fullname, "fullname")
        folder = self._tree / package_folder(self._namespace.local_name(name) or name)
        return FolderResources(folder) if folder.is_dir() else None

    def id(self) -> str:
        """The name of this package's namespace, unique in this process; an identifier."""
        return self._namespace.name

    @property
    def recommended_namespace(self) -> str:
        """The namespace in which the package says that it works: ``"private"`` or ``"process"``.

        A trial run finds that out when a package is made; :func:`modpack.load` uses it.
        """
        return find_namespace(self._archive)

    def python_version(self) -> str | None:
        """The Python that wrote the package, such as ``"3.11.7"``; None if not recorded."""
        if not self._archive.has(layout.PYTHON_VERSION):
            return None
        return self._archive.read(layout.PYTHON_VERSION).decode("utf-8", "replace").strip()
