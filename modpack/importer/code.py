"""What an importer does with a package's code, and the names that live objects have in it."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

from modpack.archive import layout
from modpack.core.names import require_module_name, root_of
from modpack.errors import ArchiveError
from modpack.hermetic.environment import PackageEnvironment
from modpack.hermetic.index import EntryKind
from modpack.importer.opening import OpenPackage
from modpack.report.recorded import read_plan
from modpack.resolution.importers import sys_importer

__all__ = ["ImporterCode"]


class ImporterCode(OpenPackage):
    """The part of an importer that imports; it is a place that objects have their names in."""

    def import_module(self, name: str, package: str | None = None) -> ModuleType:
        """Import a module of the package, or an extern one that it may use.

        Args:
            name: its path as the packaged code knows it, or the full name that a loaded object
                carries in ``__module__``; relative if it starts with a dot.
            package: what a relative name is relative to.

        Raises:
            ModuleNotFoundError: the package has no such module and may not take it from here.
        """
        if str(name).startswith(".") and package is not None:
            name = importlib.util.resolve_name(name, require_module_name(package, "package"))
        if "torch" not in sys.modules:
            return self._namespace.import_module(require_module_name(name, "name"))
        from modpack.unpacking.operators import operator_conflicts_explained  # it needs torch

        with operator_conflicts_explained(self.filename):
            return self._namespace.import_module(require_module_name(name, "name"))

    def get_source(self, module_name: str) -> str:
        """The source text of a packaged module; nothing is imported.

        Raises:
            ModuleNotFoundError: the package holds no source of that name.
            ArchiveError: what it holds is no text.
        """
        entry = self._entry(require_module_name(module_name))
        if entry is None or entry.kind is not EntryKind.SOURCE:
            raise ModuleNotFoundError(
                f"{self.filename} holds no source of {module_name!r}", name=module_name
            )
        try:
            return importlib.util.decode_source(self._archive.read(entry.record))
        except (SyntaxError, UnicodeError, LookupError) as failure:  # codecs raise them all
            reason = f"it is no source text: {failure}"
            raise ArchiveError(self.filename, reason, entry.record) from failure

    @property
    def modules(self) -> dict[str, ModuleType]:
        """The modules of the package that are loaded by now, by the paths that its code knows."""
        known = ((name, self.loaded_module(name)) for name in self._index.entries)
        return {name: module for name, module in known if module is not None}

    @property
    def code_builtins(self) -> dict[str, Any]:
        """What the package's code sees as builtins: its imports find what the package holds."""
        return self._namespace.builtins

    @property
    def environment(self) -> PackageEnvironment:
        """The package as a place that an exporter takes modules from."""
        return PackageEnvironment(
            self.filename, self._index, self._archive.read, self._tree, self._data_files
        )

    def get_name(self, obj: object, name: str | None = None) -> tuple[str, str]:
        """How an object of this package, or of a module it takes from here, is found in it.

        Raises:
            ObjNotFoundError, ObjMismatchError: it is not the package's.
        """
        carried = str(getattr(obj, "__module__", None) or "")
        if self._owns(carried) or not self._index.allows_host(carried):
            return super().get_name(obj, name)
        return sys_importer.get_name(obj, name)

    def whichmodule(self, obj: object, name: str) -> str:
        """The path of the module that an object says it lives in, as packaged code knows it."""
        carried = super().whichmodule(obj, name)
        local = self._namespace.local_name(carried)
        return carried if local is None else local

    def loaded_module(self, module_name: str) -> ModuleType | None:
        """A module of the package if it is loaded already."""
        entry = self._entry(module_name)
        if entry is None or entry.kind is EntryKind.EXTERN:
            return None
        module = sys.modules.get(self._namespace.full_name(module_name))
        own = getattr(module, "__dict__", {}).get("__modpack__", self) is self
        return module if own else None

    def has_unloaded(self, module_name: str) -> bool:
        """Whether the package has a module that is not loaded, so that no live object is of it."""
        entry = self._entry(module_name)
        is_code = entry is not None and entry.is_code
        return is_code and self.loaded_module(module_name) is None

    def hides(self, module_name: str) -> bool:
        """Whether a packaged module cannot be found in ``sys.modules`` under its real name."""
        entry = self._index.entries.get(module_name)
        return bool(self._namespace.prefix) and entry is not None and entry.is_code

    def ready_module(self, name: str) -> ModuleType | None:
        """What :meth:`import_module` gives for an absolute name, if that is imported already.

        A pickle asks for the same few modules again and again.
        """
        is_usual = type(self).import_module is ImporterCode.import_module
        return self._namespace.ready(name) if is_usual else None

    def _owns(self, carried: str) -> bool:
        return (
            self._namespace.local_name(carried) is not None or root_of(carried) in self._index.roots
        )

    def _data_files(self) -> dict[str, str]:
        """The files that the package's code reads, with what they belong to."""
        if not self._archive.has(layout.GRAPH):
            return {}
        from modpack.core.plan import FileKind  # saving again needs it, loading does not

        plan = read_plan(self._archive, None)
        return {file.record: file.owner for file in plan.files if file.kind is FileKind.DATA}
