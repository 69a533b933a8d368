"""Which installed distributions a package can take along, and which stay where they are.

Compiled code runs on one platform and one Python: a distribution that has some stays where it is
installed, and so does everything that it requires, for a distribution is installed with its
requirements. The same goes for what torch and modpack require: whoever loads a package has it.
"""

from __future__ import annotations

from collections.abc import Iterable

from modpack.core.location import Location
from modpack.resolution.distributions import (
    RUNTIME_ROOTS,
    Distribution,
    DistributionIndex,
    normalised,
)

__all__ = ["Portability"]


class Portability:
    """Tells which distributions stay where they are, and why; learns more as modules are decided.

    Args:
        index: the installed distributions.
        native: whether compiled code may be taken along as well.
    """

    def __init__(self, index: DistributionIndex, native: bool = False) -> None:
        self._index = index
        self._native = native
        self._bound: dict[str, str] = {}
        self._compiled: dict[str, bool] = {}
        self._asked: set[str] = set()
        for root in sorted(RUNTIME_ROOTS, reverse=True):  # torch before what requires it
            provider = index.named(root)
            if provider is not None:
                self._bind_requirements(provider)

    def why_bound(self, module: str, location: Location | None) -> str | None:
        """Why the distribution of a module stays where it is; None if it can be taken along."""
        found = self._index.distribution_of(module, location)
        if found is None:
            return None
        if not self._native and self._is_compiled(found):
            return f"{found.name} has compiled code, so it is extern"
        return self._bound.get(normalised(found.name))

    def _is_compiled(self, distribution: Distribution) -> bool:
        if distribution.name not in self._compiled:
            self._compiled[distribution.name] = self._index.is_compiled(distribution)
        return self._compiled[distribution.name]

    def bind(self, externs: Iterable[Location]) -> bool:
        """Learn which modules are extern: what their distributions require stays with them.

        Returns:
            Whether a distribution stays now that did not before.
        """
        before = len(self._bound)
        for location in externs:
            found = self._index.distribution_of(location.module, location)
            if found is not None and found.name not in self._asked:
                self._bind_requirements(found)
        return len(self._bound) > before

    def is_optional(self, module: Location, importer: Location) -> bool:
        """Whether the distribution of an importer does not require that of a module."""
        its = self._index.distribution_of(module.module, module)
        mine = self._index.distribution_of(importer.module, importer)
        if its is None or mine is None or its == mine:
            return False
        return normalised(its.name) not in self._index.required_closure(mine)

    def _bind_requirements(self, distribution: Distribution) -> None:
        self._asked.add(distribution.name)
        for name in sorted(self._index.required_closure(distribution)):
            why = f"{distribution.name}, which is extern, requires {name}: they stay together"
            self._bound.setdefault(name, why)
