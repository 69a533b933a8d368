"""Presets, and the installed distributions that a package can include.

Native code runs on one platform and one Python version. A distribution that contains native code is
therefore extern. So are its requirements, because they are installed with it, and the requirements
of torch and modpack, which every loading environment has.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from modpack.core.graph import Location
from modpack.core.names import RUNTIME_ROOTS, GlobGroup, normalized
from modpack.core.rules import Action, Owner, Rule, RuleOrigin
from modpack.discovery.distributions import DistributionIndex, InstalledDistribution
from modpack.options import Preset


def _preset(action: Action, owner: Owner, label: str) -> Rule:
    label = f"preset {label}"
    return Rule(action, GlobGroup("**"), origin=RuleOrigin.PRESET, owner=owner, label=label)


PRESETS: dict[Preset, tuple[Rule, ...]] = {
    "none": (),
    "pinned": (
        _preset(Action.EXTERN, Owner.INSTALLED, "pinned: installed distributions are extern"),
        _preset(Action.INTERN, Owner.LOCAL, "pinned: your own code is interned"),
    ),
    "hermetic": (
        _preset(Action.EXTERN, Owner.NOT_PORTABLE, "hermetic"),
        _preset(Action.INTERN, Owner.INSTALLED, "hermetic: pure-Python distributions are interned"),
        _preset(Action.INTERN, Owner.LOCAL, "hermetic: your own code is interned"),
    ),
}
"""The rules of each preset, in order. They apply after the user's rules."""


class Portability:
    """Decides which distributions are not portable, and why.

    Args:
        index: The installed distributions.
        native: Whether native code may be included.
    """

    def __init__(self, index: DistributionIndex, native: bool = False) -> None:
        self._index = index
        self._native = native
        self._is_native = cache(index.has_native_code)
        self._reasons: dict[str, str] = {}
        self._visited: set[str] = set()
        # Reversed, so that torch comes before the distributions that require it.
        for root in sorted(RUNTIME_ROOTS, reverse=True):
            provider = index.named(root)
            if provider is not None:
                self._mark_requirements(provider)

    def why_not_portable(self, module: str, location: Location | None) -> str | None:
        """Return why a module's distribution is not portable, or None if it is."""
        found = self._index.distribution_of(module, location)
        if found is None:
            return None
        if not self._native and self._is_native(found):
            return f"{found.name} contains native code, so it is extern"
        return self._reasons.get(normalized(found.name))

    def add_externs(self, externs: Iterable[Location]) -> bool:
        """Mark the requirements of extern modules' distributions as not portable.

        Returns:
            Whether any distribution is newly marked.
        """
        before = len(self._reasons)
        for location in externs:
            found = self._index.distribution_of(location.module, location)
            # An extern distribution is installed with its requirements: copies would differ.
            if found is not None and found.name not in self._visited:
                self._mark_requirements(found)
        return len(self._reasons) > before

    def _mark_requirements(self, distribution: InstalledDistribution) -> None:
        self._visited.add(distribution.name)
        for name in sorted(self._index.required_closure(distribution)):
            why = f"extern distribution {distribution.name} requires {name}"
            self._reasons.setdefault(name, why)


def always_installed(index: DistributionIndex) -> frozenset[str]:
    """Return the normalized names of torch, modpack, and all their requirements."""
    found = filter(None, map(index.named, ("torch", "modpack")))
    return frozenset({"torch", "modpack"}).union(*map(index.required_closure, found))
