"""The loader of a package's compiled modules."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from types import ModuleType

from modpack.errors import CompiledModuleError

__all__ = ["CompiledLoader"]


class CompiledLoader(ExtensionFileLoader):
    """Python's own loader of extension modules, which says what is wrong with the place.

    Args:
        fullname: the module's name in ``sys.modules``.
        path: its file in the tree.
        source: the package file, for errors.
        mark: puts the namespace's globals into the module.
    """

    def __init__(
        self, fullname: str, path: str, source: str, mark: Callable[[ModuleType], None]
    ) -> None:
        super().__init__(fullname, path)
        self._source = source
        self._mark = mark

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Map the file (PEP 489).

        Raises:
            CompiledModuleError: files in the cache must not be executed.
            ImportError: the module says so itself.
        """
        try:
            module = super().create_module(spec)
        except ImportError as failure:
            if not _may_execute(self.path):
                folder = Path(self.path).parent
                reason = (
                    f"cannot be loaded from {folder}: that file system is mounted noexec. Set "
                    "MODPACK_CACHE to a folder on another one"
                )
                raise CompiledModuleError(self._source, self.name, reason) from failure
            raise
        with contextlib.suppress(AttributeError, TypeError):  # a module may be any object
            self._mark(module)
        return module


def _may_execute(path: str) -> bool:
    """Whether the file system lets code be mapped; only POSIX tells."""
    no_execution = getattr(os, "ST_NOEXEC", 0)
    return not (no_execution and os.statvfs(path).f_flag & no_execution)
