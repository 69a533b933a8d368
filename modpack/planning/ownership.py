"""Whose a module is, as the planner asks it, answered from installed distributions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from modpack.core.actions import Owner
from modpack.core.environment import RecordedDistribution
from modpack.core.location import Location
from modpack.planning.portability import Portability
from modpack.resolution.contents import DistributionContents
from modpack.resolution.distributions import Distribution, DistributionIndex, normalised
from modpack.resolution.recording import recorded_closure

__all__ = ["InstalledOwnership"]


class InstalledOwnership:
    """Asks the distributions that are installed in this interpreter."""

    def __init__(self) -> None:
        self._index = DistributionIndex()

    def portability(self, native: bool = False) -> Portability:
        """Which distributions can be taken along; see :class:`.Portability`."""
        return Portability(self._index, native)

    def owner(self, module: str, location: Location | None) -> Owner:
        """Who is responsible for a module."""
        return self._index.owner(module, location)

    def distribution_of(self, module: str, location: Location | None) -> Distribution | None:
        """The distribution that provides a module; None for loose code."""
        return self._index.distribution_of(module, location)

    def contents_of(self, distribution: Distribution) -> DistributionContents | None:
        """The files of an installed distribution."""
        return self._index.contents_of(distribution)

    def named(self, name: str) -> Distribution | None:
        """The installed distribution of that name; None if there is none."""
        return self._index.named(name)

    def is_published(self, file: str, content: bytes) -> bool:
        """Whether an index has a file with this content."""
        return self._index.is_published(file, content)

    def recorded_closure(
        self, needed: Iterable[Distribution]
    ) -> Mapping[str, RecordedDistribution]:
        """What a package records of distributions, and of all that they require."""
        return recorded_closure(self._index, needed)

    def required_closure(self, distribution: Distribution) -> frozenset[str]:
        """The normalised names of all that a distribution requires, directly or not."""
        return self._index.required_closure(distribution)

    def always_installed(self) -> frozenset[str]:
        """The normalised names of torch and modpack, and of all that they require."""
        found = filter(None, map(self.named, ("torch", "modpack")))
        closures = (self._index.required_closure(each) for each in found)
        return frozenset({"torch", "modpack"}).union(*closures)

    def requires(self, module: str, location: Location, other: Location) -> bool:
        """Whether a module's distribution requires the distribution of another."""
        mine = self._index.distribution_of(module, location)
        its = self._index.distribution_of(other.module, other)
        if mine is None or its is None or mine == its:
            return False
        return normalised(its.name) in self._index.required_closure(mine)
