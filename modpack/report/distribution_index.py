"""The distributions of modules, with versions and licenses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from modpack.archive.base import Archive
from modpack.archive.manifest import Manifest
from modpack.core.core_metadata import license_of, parse_headers
from modpack.core.environment import (
    RecordedDistribution,
    RecordedEnvironment,
    is_optional,
    needed_at_once,
)
from modpack.core.graph import DependencyGraph
from modpack.core.names import normalized, root_of
from modpack.core.plan import Plan
from modpack.core.rules import Action, Owner
from modpack.report.audit_facts import DistributionFacts
from modpack.report.facts import ModuleFacts

OUR_LICENSE: Final = "Apache-2.0"
"""modpack's license, if its installed metadata names none."""
PYTHONS_LICENSE: Final = "PSF-2.0"
_TORCHS: Final = frozenset({"torch", "torchgen", "functorch"})
"""The top-level modules of torch's distribution."""


def with_distributions(
    modules: Iterable[ModuleFacts],
    archive: Archive,
    plan: Plan,
    verify: Manifest | None,
    environment: RecordedEnvironment,
) -> tuple[ModuleFacts, ...]:
    """Return modules of a package with the name, version, and license of their distributions.

    Raises:
        ArchiveError: If a metadata record is damaged.
    """
    interned: dict[str, RecordedDistribution] = {}
    # The environment describes extern distributions; packaged metadata describes interned ones.
    for each in plan.distributions:
        record = f"{each.folder}/METADATA"
        # A distribution without modules here only satisfies a version check, and needs no license.
        has_text = bool(each.modules) and archive.has(record)
        text = archive.read(record, verify=verify).decode("utf-8", "replace") if has_text else ""
        known = environment.distributions.get(normalized(each.name))
        described = RecordedDistribution(
            each.name,
            each.version,
            editable=known is not None and known.editable,
            license=license_of(parse_headers(text)),
        )
        interned.update(dict.fromkeys(each.modules, described))
    found = []
    for facts in modules:
        provider = None
        if facts.action is Action.INTERN:
            provider = interned.get(facts.module)
        elif facts.action is Action.EXTERN:
            provider = _provider(facts, environment)
        if provider is not None:
            facts = facts.of_distribution(provider)
        elif facts.provided_by is Owner.STDLIB:
            facts = replace(facts, license=PYTHONS_LICENSE)
        found.append(facts)
    return tuple(found)


def _provider(facts: ModuleFacts, environment: RecordedEnvironment) -> RecordedDistribution | None:
    """Return the distribution of an extern module at export, or None."""
    if facts.provided_by is Owner.STDLIB:
        return None
    if facts.provided_by is not Owner.RUNTIME:
        return environment.provider_of(facts.module)
    root = root_of(facts.module)
    if root in _TORCHS:
        return environment.torch_distribution
    # The metadata of a checkout that is not installed names no license.
    ours = environment.modpack_distribution if root == "modpack" else None
    return ours._replace(license=ours.license or OUR_LICENSE) if ours is not None else None


def distributions_of(
    modules: Iterable[ModuleFacts], graph: DependencyGraph
) -> tuple[DistributionFacts, ...]:
    """Return the distributions with interned or extern modules, by name."""
    # An interned module is in the package anyway. Only extern ones can be left uninstalled.
    at_once = needed_at_once(graph)
    members: dict[tuple[str, str], list[ModuleFacts]] = {}
    for facts in modules:
        if facts.distribution is not None and facts.action in (Action.INTERN, Action.EXTERN):
            members.setdefault((facts.distribution, facts.version or ""), []).append(facts)
    found = []
    for (name, version), group in sorted(members.items()):
        interned = [facts for facts in group if facts.action is Action.INTERN]
        described = DistributionFacts(
            name,
            version,
            license=next((facts.license for facts in group if facts.license), None),
            editable=any(facts.editable for facts in group),
            interned=len(interned),
            extern=len(group) - len(interned),
            size_bytes=sum(facts.size_bytes or 0 for facts in interned),
            is_optional=not interned and is_optional((f.module for f in group), at_once),
        )
        found.append(described)
    return tuple(found)
