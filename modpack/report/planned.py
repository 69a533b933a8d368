"""Facts about a plan: what a package will hold, before or after it is written."""

from __future__ import annotations

from pathlib import Path

from modpack.core.actions import Action, Owner
from modpack.core.graph import Edge
from modpack.core.location import CodeKind
from modpack.core.names import module_record, root_of
from modpack.core.plan import Decision, Plan, PlannedFile
from modpack.report.facts import ImporterFacts, ModuleFacts, PlanFacts, ResourceFacts, ResourceKind
from modpack.resolution.distributions import RUNTIME_ROOTS, DistributionIndex, is_stdlib

__all__ = ["importers_of", "plan_facts", "provider_of"]


def plan_facts(plan: Plan) -> PlanFacts:
    """The facts about a plan that was made in this process.

    Asks the installed distributions for versions, and source files for their sizes.

    Args:
        plan: what an exporter's ``plan()`` or ``close()`` returned.
    """
    index = DistributionIndex()
    modules = (_module(plan, decision, index) for decision in plan.decisions.values())
    ordered = tuple(sorted(modules, key=lambda facts: facts.module))
    return PlanFacts(ordered, plan.problems, plan.notes, tuple(map(_file, plan.files)))


def importers_of(plan: Plan, module: str) -> tuple[ImporterFacts, ...]:
    """Who needs a module, with the place where it shows."""
    return tuple(_importer(plan, edge) for edge in plan.graph.edges_to(module))


def provider_of(module: str, is_installed: bool) -> Owner:
    """Who provides an extern module.

    Args:
        module: its path.
        is_installed: whether a distribution, no editable one, provided it at export.
    """
    if is_stdlib(module):
        return Owner.STDLIB
    if root_of(module) in RUNTIME_ROOTS:
        return Owner.RUNTIME
    return Owner.INSTALLED if is_installed else Owner.LOCAL


def _module(plan: Plan, decision: Decision, index: DistributionIndex) -> ModuleFacts:
    module, action, location = decision.module, decision.action, decision.location
    is_source = location is not None and location.kind is CodeKind.SOURCE
    source = location if action is Action.INTERN and is_source else None
    owner = provider_of(module, is_installed=False) if action is Action.EXTERN else None
    found = index.distribution_of(module, location) if owner is Owner.LOCAL else None
    if found is not None and not found.editable:
        owner = Owner.INSTALLED
    return ModuleFacts(
        module,
        action,
        str(decision.rule),
        decision.overridden_by,
        importers_of(plan, module),
        owner,
        found.name if found is not None else None,
        found.version if found is not None else None,
        module_record(module, source.is_package) if source is not None else None,
        _size(source.file) if source is not None else None,
    )


def _file(file: PlannedFile) -> ResourceFacts:
    return ResourceFacts(
        file.record, ResourceKind(file.kind.value), _size(file.source) or 0, file.owner
    )


def _size(file: str | None) -> int | None:
    """Bytes of a source file; None for sources that are no files of their own."""
    path = Path(file or "")
    return path.stat().st_size if path.is_file() else None


def _importer(plan: Plan, edge: Edge) -> ImporterFacts:
    decision = plan.decisions.get(edge.importer)
    location = decision.location if decision is not None else None
    file = location.file if location is not None else None
    return ImporterFacts(edge.importer, file, edge.line, edge.kind)
