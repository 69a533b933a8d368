"""Audits: everything that is known about a package or a plan, and what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from modpack.archive.base import Archive, RecordVerifier
from modpack.archive.reader import open_archive
from modpack.core.actions import Action
from modpack.core.location import CodeKind
from modpack.core.plan import Plan
from modpack.core.progress import phase
from modpack.report.archived import facts_of, read_checked_manifest
from modpack.report.auditing.belonging import (
    Belonging,
    InstalledBelonging,
    RecordedBelonging,
    distributions_of,
    recorded_distributions,
    with_distributions,
)
from modpack.report.auditing.facts import AuditFacts, Finding
from modpack.report.auditing.findings import find_all
from modpack.report.auditing.mocks import mock_facts
from modpack.report.codelisting import pickle_findings, source_findings
from modpack.security.packagecode import list_package
from modpack.report.facts import ModuleFacts, PackageFacts
from modpack.report.planned import importers_of, plan_facts
from modpack.report.recorded import environment_of, read_plan
from modpack.resolution.distributions import DistributionIndex

__all__ = ["audit_package", "audit_plan"]

_Sources: TypeAlias = Mapping[str, tuple[bytes, bool]]
"""Interned modules: the source, and whether it is that of a package."""


def audit_package(source: str | os.PathLike[str]) -> AuditFacts:
    """Audit a package file: read it, run nothing of it, unpickle nothing.

    A package of ``torch.package`` records neither rules nor versions: what its contents tell
    takes their place, as far as it goes.

    Args:
        source: a package file, or the folder of an unzipped package; modpack's or torch.package's.

    Raises:
        TypeError: it is no path.
        UnsupportedVersionError: a newer modpack wrote it.
        ArchiveError: it is no package, or a damaged one.
    """
    with open_archive(source) as archive:
        manifest = read_checked_manifest(archive)
        plan = read_plan(archive, manifest) if manifest else _evidence(archive)
        package = facts_of(archive, manifest, plan)
        plan = _with_uses(plan, lambda: _packaged_sources(archive, manifest, package.modules))
        environment = environment_of(archive, manifest)
        interned = recorded_distributions(archive, plan, manifest, environment)
        with phase("reading pickles and sources"):
            code = list_package(archive, manifest)
            scanned = [
                *pickle_findings(archive, manifest, code),
                *source_findings(archive, code),
            ]
    belonging = RecordedBelonging(interned, environment)
    modules = _modules(package, plan, belonging)
    return _judged(
        AuditFacts(
            package.file,
            modules,
            package,
            mock_facts(plan, package.trial, modules),
            distributions_of(modules, plan.graph),
            notes=plan.notes,
            graph=plan.graph,
            environment=environment,
            files=tuple(each for each in package.resources if each.kind.goes_along),
            absent=_absent(plan),
            code=code,
        ),
        scanned,
    )


def audit_plan(subject: str, plan: Plan) -> AuditFacts:
    """Audit a plan that was made in this process: what a package will be like.

    Asks the installed distributions for versions and licences, and reads source files.

    Args:
        subject: what was planned, for people.
        plan: what an exporter's ``plan()`` returned.
    """
    facts = plan_facts(plan)
    plan = _with_uses(plan, lambda: _planned_sources(plan))
    belonging = InstalledBelonging(plan, DistributionIndex())
    modules = tuple(with_distributions(facts.modules, belonging))
    return _judged(
        AuditFacts(
            subject,
            modules,
            mocks=mock_facts(plan, None, modules),
            distributions=distributions_of(modules, plan.graph),
            problems=facts.problems,
            notes=facts.notes,
            graph=plan.graph,
            files=facts.files,
            absent=_absent(plan),
        )
    )


def _absent(plan: Plan) -> frozenset[str]:
    """The extern modules that were not found at export."""
    decisions = (plan.decisions[module] for module in plan.modules(Action.EXTERN))
    return frozenset(each.module for each in decisions if each.location is None)


def _evidence(archive: Archive) -> Plan:
    """What the contents of a package of torch.package tell."""
    from modpack.report.evidence import read_evidence  # most audits do without

    return read_evidence(archive, with_uses=False)


def _judged(audit: AuditFacts, scanned: Sequence[Finding] = ()) -> AuditFacts:
    return replace(audit, findings=find_all(audit, scanned))


def _modules(package: PackageFacts, plan: Plan, belonging: Belonging) -> tuple[ModuleFacts, ...]:
    """The modules of a package, with their distributions; with their importers at any rate."""
    modules = (
        facts if facts.importers else replace(facts, importers=importers_of(plan, facts.module))
        for facts in package.modules
    )
    return tuple(with_distributions(modules, belonging))


def _with_uses(plan: Plan, sources: Callable[[], _Sources]) -> Plan:
    """A plan with the uses of mocked modules, found now if it does not tell them."""
    mocked = plan.modules(Action.MOCK)
    if plan.tells_uses or not mocked:
        return plan
    from modpack.discovery.mockuse.finding import callable_from_outside, find_uses

    with phase("looking for uses of mocked modules"):
        uses = find_uses(sources(), mocked, callable_from_outside(plan.graph), plan.graph)
    return replace(plan, uses=uses, tells_uses=True)


def _packaged_sources(
    archive: Archive, verify: RecordVerifier | None, modules: Sequence[ModuleFacts]
) -> _Sources:
    return {
        facts.module: (archive.read(record, verify=verify), record.endswith("/__init__.py"))
        for facts in modules
        if facts.action is Action.INTERN and (record := facts.record) is not None
        if record.endswith(".py")
    }


def _planned_sources(plan: Plan) -> _Sources:
    found: dict[str, tuple[bytes, bool]] = {}
    for module in plan.modules(Action.INTERN):
        location = plan.decisions[module].location
        if location is None or location.kind is not CodeKind.SOURCE or location.file is None:
            continue
        file = Path(location.file)
        if file.is_file():
            found[module] = (file.read_bytes(), location.is_package)
    return found
