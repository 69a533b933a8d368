"""Ready-made rules, and which installed distributions a package can include.

Compiled code runs on one platform and one Python: a distribution that has some stays where it is
installed, and so does everything that it requires, for a distribution is installed with its
requirements. The same goes for what torch and modpack require: the loading environment has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from modpack.core.graph import Location
from modpack.core.names import RUNTIME_ROOTS, GlobGroup
from modpack.core.names import normalized_distribution as normalized
from modpack.core.rules import Action, Owner, Rule, RuleOrigin
from modpack.discovery.distributions import Distribution, DistributionIndex


def _preset(action: Action, owner: Owner, label: str) -> Rule:
    return Rule(action, GlobGroup("**"), origin=RuleOrigin.PRESET, owner=owner, label=label)


PRESETS: dict[str, tuple[Rule, ...]] = {
    "none": (),
    "pinned": (
        _preset(
            Action.EXTERN, Owner.INSTALLED, "preset pinned: installed distributions are extern"
        ),
        _preset(Action.INTERN, Owner.LOCAL, "preset pinned: your own code is interned"),
    ),
    "hermetic": (
        _preset(Action.EXTERN, Owner.BOUND, "preset hermetic"),
        _preset(
            Action.INTERN,
            Owner.INSTALLED,
            "preset hermetic: pure-Python distributions are interned",
        ),
        _preset(Action.INTERN, Owner.LOCAL, "preset hermetic: your own code is interned"),
    ),
}
"""The rules of each preset, in order. One row each."""


def preset_rules(preset: str) -> tuple[Rule, ...]:
    """The rules that a preset stands for; they come after the user's.

    Raises:
        ValueError: there is no such preset.
    """
    if preset not in PRESETS:
        from difflib import get_close_matches

        known = ", ".join(map(repr, PRESETS))
        close = get_close_matches(preset, PRESETS, 1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"preset must be one of {known}, not {preset!r}{meant}")
    return PRESETS[preset]


class Portability:
    """Tells which distributions stay where they are, and why; learns more as modules are decided.

    Args:
        index: the installed distributions.
        native: whether compiled code may be taken along as well.
    """

    def __init__(self, index: DistributionIndex, native: bool = False) -> None:
        self._index = index
        self._native = native
        self._is_compiled = cache(index.is_compiled)
        self._bound: dict[str, str] = {}
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
        return self._bound.get(normalized(found.name))

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
        return requires(self._index, importer, module) is False

    def _bind_requirements(self, distribution: Distribution) -> None:
        self._asked.add(distribution.name)
        for name in sorted(self._index.required_closure(distribution)):
            why = f"{distribution.name}, which is extern, requires {name}: they stay together"
            self._bound.setdefault(name, why)


def requires(index: DistributionIndex, module: Location, other: Location) -> bool | None:
    """Whether a module's distribution requires that of another; None unless both have one."""
    mine = index.distribution_of(module.module, module)
    its = index.distribution_of(other.module, other)
    if mine is None or its is None or mine == its:
        return None
    return normalized(its.name) in index.required_closure(mine)


def always_installed(index: DistributionIndex) -> frozenset[str]:
    """The normalized names of torch and modpack, and of all that they require."""
    found = filter(None, map(index.named, ("torch", "modpack")))
    return frozenset({"torch", "modpack"}).union(*map(index.required_closure, found))
