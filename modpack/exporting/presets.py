"""Presets: ready-made rules for those who would rather not write any.

Which installed distributions a package can take along, and which stay where they are.

Compiled code runs on one platform and one Python: a distribution that has some stays where it is
installed, and so does everything that it requires, for a distribution is installed with its
requirements. The same goes for what torch and modpack require: whoever loads a package has it.

Whose a module is, as the planner asks it, answered from installed distributions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from modpack.core.environment import RecordedDistribution
from modpack.core.graph import Location
from modpack.core.names import RUNTIME_ROOTS, GlobGroup
from modpack.core.names import normalised_distribution as normalised
from modpack.core.rules import Action, Origin, Owner, Rule
from modpack.discovery.distributions import Distribution, DistributionContents, DistributionIndex
from modpack.discovery.environment import recorded_closure


def _preset(action: Action, owner: Owner, label: str) -> Rule:
    return Rule(action, GlobGroup("**"), origin=Origin.PRESET, owner=owner, label=label)


POLICIES: dict[str, tuple[Rule, ...]] = {
    "none": (),
    "pinned": (
        _preset(
            Action.EXTERN, Owner.INSTALLED, "policy pinned: installed distributions are extern"
        ),
        _preset(Action.INTERN, Owner.LOCAL, "policy pinned: your own code is interned"),
    ),
    "hermetic": (
        _preset(Action.EXTERN, Owner.BOUND, "policy hermetic"),
        _preset(
            Action.INTERN,
            Owner.INSTALLED,
            "policy hermetic: pure-Python distributions are interned",
        ),
        _preset(Action.INTERN, Owner.LOCAL, "policy hermetic: your own code is interned"),
    ),
}
"""The rules of each policy, in order. One row each."""


def asks_for_bound(rules: Sequence[Rule]) -> bool:
    """Whether rules tell distributions that can be taken along from those that cannot."""
    return any(rule.owner is Owner.BOUND for rule in rules)


def preset_rules(policy: str) -> tuple[Rule, ...]:
    """The rules that a policy stands for; they come after the user's.

    Raises:
        ValueError: there is no such policy.
    """
    if policy not in POLICIES:
        from difflib import get_close_matches

        known = ", ".join(map(repr, POLICIES))
        close = get_close_matches(policy, POLICIES, 1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"policy must be one of {known}, not {policy!r}{meant}")
    return POLICIES[policy]


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
