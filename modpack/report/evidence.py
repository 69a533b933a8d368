"""The evidence in a package: which module was decided how, and who imports whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from modpack.archive.base import Archive
from modpack.archive.manifest import read_manifest
from modpack.core.actions import Action, Owner
from modpack.core.environment import RecordedEnvironment
from modpack.core.globs import GlobGroup
from modpack.core.location import CodeKind
from modpack.core.names import root_of
from modpack.core.plan import Decision, Plan
from modpack.core.progress import phase
from modpack.core.rules import Origin, Rule
from modpack.report.archived import facts_of, read_checked_manifest
from modpack.report.planned import provider_of
from modpack.report.recorded import read_environment, read_plan

__all__ = [
    "mentions",
    "read_evidence",
    "read_provider",
    "sources_here",
    "with_stand_ins",
]


def read_evidence(archive: Archive, *, with_uses: bool = True) -> Plan:
    """The plan that a package was written by, or what its contents tell of it.

    modpack's packages record it. Those of torch.package do not: their sources and pickles are
    read for it, and nothing is run.

    Args:
        archive: the package.
        with_uses: for an archive of torch.package, whether to look for the uses of mocked
            modules as well.

    Raises:
        ArchiveError: it is no package, or a damaged one.
    """
    manifest = read_checked_manifest(archive)
    if manifest is not None:
        return read_plan(archive, manifest)
    # Reading sources and pickles needs much that packages of modpack do not need.
    from modpack.report.ancestors import reconstructed_plan

    plan = reconstructed_plan(archive)
    mocked = plan.modules(Action.MOCK)
    if not with_uses or not mocked:
        return plan
    from modpack.discovery.mockuse.finding import callable_from_outside, find_uses

    with phase("looking for uses of mocked modules"):
        uses = find_uses(
            _sources(archive, plan), mocked, callable_from_outside(plan.graph), plan.graph
        )
    return replace(plan, uses=uses, tells_uses=True)


def mentions(plan: Plan, module: str) -> bool:
    """Whether the evidence tells anything about a module; a saved object is none."""
    return module in plan.decisions or (module in plan.graph and not module.startswith("<"))


def with_stand_ins(archive: Archive, plan: Plan) -> Plan:
    """A plan with what stand-ins bring along, which no plan mentions: decided by what it is for.

    Args:
        archive: the package.
        plan: its evidence.
    """
    facts = facts_of(archive, read_checked_manifest(archive), plan)
    brought = {
        each.module: Decision(
            each.module,
            each.action,
            Rule(each.action, GlobGroup("**"), origin=Origin.IMPLICIT, label=each.why),
        )
        for each in facts.modules
        if each.module not in plan.decisions
    }
    return replace(plan, decisions={**plan.decisions, **brought})


def read_provider(archive: Archive, plan: Plan, module: str) -> str | None:
    """What provided a module when a package was made, with its version, if that is recorded.

    Raises:
        ArchiveError: the package is damaged.
    """
    decision, manifest = plan.decisions.get(module), read_manifest(archive)
    if decision is None or manifest is None:
        return None
    if decision.action is Action.EXTERN:
        return _provider_of_extern(read_environment(archive, manifest), module)
    owner = next((d for d in plan.distributions if module in d.modules), None)
    return f"{owner.name} {owner.version}" if owner is not None else None


def _provider_of_extern(environment: RecordedEnvironment, module: str) -> str | None:
    owner = provider_of(module, is_installed=False)
    if owner is Owner.STDLIB:
        return "the standard library"
    if owner is Owner.RUNTIME and root_of(module) != "modpack":
        return f"torch {environment.torch}" if environment.torch else "torch"
    provider = environment.provider_of(module)
    if provider is None:
        return None
    editable = ", an editable install" if provider.editable else ""
    return f"{provider.name} {provider.version}{editable}"


def sources_here(plan: Plan) -> dict[str, tuple[bytes, bool]]:
    """The sources that a plan of this process takes along, from the files in which they lie.

    Args:
        plan: what an exporter's ``plan()`` returned.

    Returns:
        By module: its source, and whether it can have submodules. Sources that lie in no file,
        because somebody gave them, are left out.
    """
    found = {}
    for module in plan.modules(Action.INTERN):
        location = plan.decisions[module].location
        if location is not None and location.kind is CodeKind.SOURCE and location.file:
            file = Path(location.file)
            if file.is_file():
                found[module] = (file.read_bytes(), location.is_package)
    return found


def _sources(archive: Archive, plan: Plan) -> dict[str, tuple[bytes, bool]]:
    found = {}
    for module in plan.modules(Action.INTERN):
        location = plan.decisions[module].location
        if location is not None and location.kind is CodeKind.SOURCE and location.file:
            found[module] = (archive.read(location.file), location.is_package)
    return found
