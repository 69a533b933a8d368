"""The loader of extern modules: those that a package takes from where it is loaded."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

from modpack.core.names import is_within
from modpack.errors import ExternNotFoundError

__all__ = ["ExternLoader"]


class ExternLoader(Loader):
    """Stands the host's module in place of a packaged one.

    The import system takes what ``sys.modules`` holds after a loader ran, so the host's module
    takes the place without being touched. Where the package holds modules below an extern
    package, those must not become attributes of the host's: a facade goes between.

    Args:
        module: the path under which the host knows it.
        not_found: makes the error for one that is not here.
        shared: whether the package holds modules below it.
    """

    def __init__(
        self, module: str, not_found: Callable[[str], ExternNotFoundError], shared: bool
    ) -> None:
        self._module = module
        self._not_found = not_found
        self._shared = shared

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python (PEP 451)."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the host's module into its place, or a facade of it."""
        host = self._host_module()
        if not self._shared:
            sys.modules[module.__name__] = host
            return
        module.__doc__ = host.__doc__
        module.__dict__["__getattr__"] = lambda name: getattr(host, name)
        module.__dict__["__dir__"] = lambda: dir(host)

    def _host_module(self) -> ModuleType:
        try:
            return importlib.import_module(self._module)
        except ModuleNotFoundError as failure:
            if failure.name is None or not is_within(self._module, failure.name):
                raise
            raise self._not_found(self._module) from failure
