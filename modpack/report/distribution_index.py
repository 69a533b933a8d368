"""To which distribution each module belongs, with version and licence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, Protocol

from modpack.archive.base import Archive, RecordVerifier
from modpack.core.environment import (
    RecordedDistribution,
    RecordedEnvironment,
    headers,
    is_optional,
    licence_of,
    needed_at_once,
)
from modpack.core.graph import DependencyGraph
from modpack.core.names import normalised_distribution as normalised
from modpack.core.names import root_of
from modpack.core.plan import Plan
from modpack.core.rules import Action, Owner
from modpack.discovery.distributions import Distribution, DistributionIndex
from modpack.report.audit_facts import DistributionFacts
from modpack.report.facts import ModuleFacts

OUR_LICENCE: Final = "Apache-2.0"
"""modpack's, where it was not installed from a distribution that says so."""
_PYTHONS_LICENCE: Final = "PSF-2.0"
_TORCHS: Final = frozenset({"torch", "torchgen", "functorch"})
"""What torch's distribution provides."""


class Belonging(Protocol):
    """Knows the distribution of modules."""

    def of(self, facts: ModuleFacts) -> RecordedDistribution | None:
        """The distribution that a module belongs to; None if there is none, or nobody knows."""


class RecordedBelonging:
    """What a package records of it.

    Args:
        interned: the distributions of interned modules, by module.
        environment: where the package was made.
    """

    def __init__(
        self, interned: Mapping[str, RecordedDistribution], environment: RecordedEnvironment
    ) -> None:
        self._interned = interned
        self._environment = environment

    def of(self, facts: ModuleFacts) -> RecordedDistribution | None:
        """The distribution that provided a module when the package was made."""
        if facts.action is Action.INTERN:
            return self._interned.get(facts.module)
        if facts.action is not Action.EXTERN or facts.provided_by is Owner.STDLIB:
            return None
        if facts.provided_by is Owner.RUNTIME:
            return self._runtime(root_of(facts.module))
        return self._environment.provider_of(facts.module)

    def _runtime(self, root: str) -> RecordedDistribution | None:
        if root in _TORCHS:
            return self._environment.torchs_distribution
        ours = self._environment.modpacks_distribution if root == "modpack" else None
        return ours._replace(licence=ours.licence or OUR_LICENCE) if ours is not None else None


def recorded_distributions(
    archive: Archive, plan: Plan, verify: RecordVerifier | None, environment: RecordedEnvironment
) -> Mapping[str, RecordedDistribution]:
    """The distributions of interned modules, by module, with the licences that went along.

    Raises:
        ArchiveError: a record of metadata is damaged.
    """
    found: dict[str, RecordedDistribution] = {}
    for each in plan.distributions:
        record = f"{each.folder}/METADATA"
        has_text = bool(each.modules) and archive.has(record)
        text = archive.read(record, verify=verify).decode("utf-8", "replace") if has_text else ""
        known = environment.distributions.get(normalised(each.name))
        described = RecordedDistribution(
            each.name,
            each.version,
            editable=known is not None and known.editable,
            licence=licence_of(headers(text)),
        )
        found.update(dict.fromkeys(each.modules, described))
    return found


class InstalledBelonging:
    """What is installed here, for a plan that was made here.

    Args:
        plan: the plan.
        index: the installed distributions.
    """

    def __init__(self, plan: Plan, index: DistributionIndex) -> None:
        self._plan = plan
        self._index = index
        self._described: dict[Distribution, RecordedDistribution] = {}

    def of(self, facts: ModuleFacts) -> RecordedDistribution | None:
        """The installed distribution that a module was found in."""
        if facts.provided_by is Owner.STDLIB:
            return None
        root = root_of(facts.module)
        if facts.provided_by is Owner.RUNTIME:
            found = self._index.named("torch" if root in _TORCHS else root)
        else:
            location = self._plan.decisions[facts.module].location
            found = self._index.distribution_of(facts.module, location)
        return self._describe(found) if found is not None else None

    def _describe(self, found: Distribution) -> RecordedDistribution:
        if found not in self._described:
            licence = self._index.licence_of(found)
            self._described[found] = RecordedDistribution(
                found.name, found.version, found.editable, licence
            )
        return self._described[found]


def with_distributions(
    modules: Iterable[ModuleFacts], belonging: Belonging
) -> Iterator[ModuleFacts]:
    """Modules with the distribution that each belongs to, its version and licence."""
    for facts in modules:
        found = belonging.of(facts)
        if found is not None:
            yield replace(
                facts,
                distribution=found.name,
                version=found.version,
                licence=found.licence,
                editable=found.editable,
            )
        elif facts.provided_by is Owner.STDLIB:
            yield replace(facts, licence=_PYTHONS_LICENCE)
        else:
            yield facts


def distributions_of(
    modules: Iterable[ModuleFacts], graph: DependencyGraph
) -> tuple[DistributionFacts, ...]:
    """The distributions of which a package holds or needs modules, by name."""
    at_once = needed_at_once(graph)
    members: dict[tuple[str, str], list[ModuleFacts]] = {}
    for facts in modules:
        if facts.distribution is not None and facts.action in (Action.INTERN, Action.EXTERN):
            members.setdefault((facts.distribution, facts.version or ""), []).append(facts)
    return tuple(
        _distribution(name, version, members[name, version], at_once)
        for name, version in sorted(members)
    )


def _distribution(
    name: str, version: str, members: list[ModuleFacts], at_once: frozenset[str] | None
) -> DistributionFacts:
    interned = [facts for facts in members if facts.action is Action.INTERN]
    return DistributionFacts(
        name,
        version,
        next((facts.licence for facts in members if facts.licence), None),
        any(facts.editable for facts in members),
        len(interned),
        sum(facts.action is Action.EXTERN for facts in members),
        sum(facts.size_bytes or 0 for facts in interned),
        not interned and is_optional((facts.module for facts in members), at_once),
    )
