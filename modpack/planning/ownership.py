"""Whose a module is, as the planner asks it, answered from installed distributions."""

from __future__ import annotations

from modpack.core.actions import Owner
from modpack.core.location import Location
from modpack.resolution.distributions import Distribution, DistributionIndex, normalised

__all__ = ["InstalledOwnership"]


class InstalledOwnership:
    """Asks the distributions that are installed in this interpreter."""

    def __init__(self) -> None:
        self._index = DistributionIndex()

    def owner(self, module: str, location: Location | None) -> Owner:
        """Who is responsible for a module."""
        return self._index.owner(module, location)

    def distribution_of(self, module: str, location: Location | None) -> Distribution | None:
        """The distribution that provides a module; None for loose code."""
        return self._index.distribution_of(module, location)

    def requires(self, module: str, location: Location, other: Location) -> bool:
        """Whether a module's distribution requires the distribution of another."""
        mine = self._index.distribution_of(module, location)
        its = self._index.distribution_of(other.module, other)
        if mine is None or its is None or mine == its:
            return False
        return normalised(its.name) in self._index.required_closure(mine)
