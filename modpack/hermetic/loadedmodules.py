"""``sys.modules`` as packaged code sees it: its own modules under the names that it knows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, MutableMapping
from types import ModuleType

__all__ = ["LoadedModules"]


class LoadedModules(MutableMapping[str, ModuleType]):
    """Forwards to ``sys.modules``; a path of the package leads to the package's module.

    Code that looks itself up by its literal name, ``sys.modules["mylib.registry"]``, gets the
    module that it means, which lives in the package's namespace.

    Args:
        translated: gives the full name for a path that packaged code writes.

    >>> LoadedModules(lambda name: name)["sys"] is sys
    True
    """

    def __init__(self, translated: Callable[[str], str]) -> None:
        self._translated = translated

    def __getitem__(self, name: str) -> ModuleType:
        return sys.modules[self._full(name)]

    def __setitem__(self, name: str, module: ModuleType) -> None:
        sys.modules[self._full(name)] = module

    def __delitem__(self, name: str) -> None:
        del sys.modules[self._full(name)]

    def __contains__(self, name: object) -> bool:
        return self._full(name) in sys.modules

    def __iter__(self) -> Iterator[str]:
        return iter(sys.modules)

    def __len__(self) -> int:
        return len(sys.modules)

    def copy(self) -> dict[str, ModuleType]:
        """A snapshot with full names (:meth:`dict.copy`)."""
        return dict(sys.modules)

    def _full(self, name: object) -> str:
        # Whatever is no string gets the error that sys.modules gives.
        return self._translated(name) if isinstance(name, str) else name  # type: ignore[return-value]
