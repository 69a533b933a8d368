"""The evidence for a module: import chains that lead to it from the saved objects."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from modpack.archive.reader import open_archive
from modpack.archive.records import load_environment
from modpack.core.codec import Line, json_keys
from modpack.core.graph import Edge
from modpack.core.names import similar_modules
from modpack.core.observations import MockRisk, observed_risk
from modpack.core.plan import Plan
from modpack.core.rules import Action
from modpack.core.scan import ImportKind
from modpack.core.selftest import SelfTestRecord
from modpack.core.text import printable
from modpack.diagnostics import Diagnostic
from modpack.errors import ModpackError
from modpack.report.distribution_index import with_distributions
from modpack.report.facts import (
    ImporterFacts,
    ModuleFacts,
    Provider,
    code_file,
    importers_of,
    location_of,
)
from modpack.report.package_info import facts_of, read_checked_manifest, recorded_plan

_STRENGTH: Final = (
    ImportKind.EXPLICIT,
    ImportKind.PICKLE,
    ImportKind.REQUIRED,
    ImportKind.PARENT,
    ImportKind.SELF_TEST,
    ImportKind.FUNCTION,
    ImportKind.DYNAMIC,
    ImportKind.GUARDED,
    ImportKind.LIVE_MODULE,
    ImportKind.TYPE_CHECKING,
)
"""Kinds of evidence, the strongest first. A link shows the strongest."""
_MAX_CHAINS: Final = 10
MAX_NODES: Final = 10_000
"""Limit of the modules and objects on all shown chains. Further chains are counted."""


@dataclass(frozen=True)
class ImportLink:
    """One link of an import chain, with the strongest evidence for it.

    Attributes:
        importer: Path of the importing module, or a saved object (``<model/model.pkl>``).
        imported: Path of the imported module.
        kind: Strength of the dependency.
        path: Code of the importer: a record of the package, or a file for a plan. None if unknown.
        line: 1-based line of the import. None without such a line.
        names: Names that are imported from the module, as far as known.
        others: Number of further locations in the importer with evidence for this link.
    """

    importer: str
    imported: str
    kind: ImportKind
    path: str | None = None
    line: Line | None = None
    names: tuple[str, ...] = ()
    others: int = 0

    @property
    def location(self) -> str:
        """``path:line``, as far as known."""
        return location_of(self.importer, self.path, self.line)


@dataclass(frozen=True)
class Chain:
    """An import chain.

    Attributes:
        start: Saved object, or module that was saved by name.
        links: Links from the start to the module. Empty if the module itself was saved.
    """

    start: str
    links: tuple[ImportLink, ...] = ()


class ModuleStatus(str, Enum):
    """Status of a module in a package."""

    DECIDED = "decided"
    """The package has a decision about the module."""
    EXCLUDED = "excluded"
    """Code imports the module, but the module is absent from the package on purpose."""
    TYPE_CHECKING_ONLY = "type-checking-only"
    """Only code that never runs imports the module, such as ``if TYPE_CHECKING``."""
    UNDECIDED = "undecided"
    """Code needs the module, and the package has no decision about it."""


@json_keys({"omitted": "omitted_chains"})
@dataclass(frozen=True, kw_only=True)
class Why:
    """The reasons why a module is in a package, or is not.

    Attributes:
        path: The package, as the user named it.
        module: Path of the module.
        status: What the package has to do with the module.
        action: The decision, or None.
        rule: Rule that matched. None without a decision, or if the package does not record it.
        overridden_by: Hook that changed the action of the rule, or None.
        hooks: Match hooks that were called for the module, in order.
        provided_by: Provider of the module at export, or None if not recorded.
        distribution: Distribution that contained the module at export, or None.
        version: Version of the distribution, or None.
        chains: One of the shortest import chains from each saved object, the shortest first.
        omitted: Number of saved objects whose chains are not listed.
        importers: All locations that import the module directly.
        notes: Notes about the module.
        observed: What the recorded self-test showed about the module, or None.
        imported: When a load imports the module and why, if imports wait, or None.
    """

    path: str
    module: str
    status: ModuleStatus
    action: Action | None = None
    rule: str | None = None
    overridden_by: str | None = None
    hooks: tuple[str, ...] = ()
    provided_by: Provider | None = None
    distribution: str | None = None
    version: str | None = None
    chains: tuple[Chain, ...] = ()
    omitted: int = 0
    importers: tuple[ImporterFacts, ...] = ()
    notes: tuple[Diagnostic, ...] = ()
    observed: str | None = None
    imported: str | None = None


def why_package(source: str | os.PathLike[str], module: str) -> Why:
    """Return the evidence for the decision of a package about a module, without running code.

    Args:
        source: Package file, or directory of an unzipped package; of modpack or torch.package.
        module: Absolute name of the module.

    Raises:
        ModpackError: If the package does not mention the module.
        ArchiveError: If it is not a package, or damaged.
    """
    with open_archive(source) as archive:
        manifest = read_checked_manifest(archive)
        plan = recorded_plan(archive, manifest)
        package = facts_of(archive, manifest, plan)
        environment = load_environment(archive, manifest)
        described = with_distributions(package.modules, archive, plan, manifest, environment)
    modules = {facts.module: facts for facts in described}
    # Saved objects are nodes of the graph, too, but not modules.
    known = {*modules, *(node for node in plan.graph.nodes() if not node.startswith("<"))}
    if module not in known:
        near = similar_modules(module, sorted(known))
        raise ModpackError(
            f"{package.path}: the package neither contains nor imports module {module!r}",
            hint=f"Did you mean {' or '.join(map(printable, near))}?" if near else "",
        )
    reasons = why(plan, module, modules.get(module), path=package.path, self_test=package.self_test)
    waiting, tested = package.waiting, package.self_test
    when = waiting.why_loaded(module) if waiting is not None else None
    if tested is not None and tested.why_none_waits is not None:
        when = f"where its import stands; no import waits: {tested.why_none_waits}"
    return replace(reasons, imported=when)


def why(
    plan: Plan,
    module: str,
    facts: ModuleFacts | None,
    *,
    path: str = "",
    self_test: SelfTestRecord | None = None,
) -> Why:
    """Return the evidence for the decision about a module.

    Args:
        plan: The plan, whose graph has the import chains.
        module: Absolute name of the module.
        facts: The decision. None if there is none.
        path: The package, as the user named it.
        self_test: The package's self-test, if any.
    """
    chains, omitted = _shortest_chains(plan, module)
    importers = importers_of(plan, module)
    found = Why(
        path=path,
        module=module,
        status=_status(plan, module),
        chains=chains,
        omitted=omitted,
        importers=tuple(sorted(importers, key=lambda e: (_weakness(e), e.importer, e.line or 0))),
        notes=tuple(note for note in plan.notes if note.subject == module),
    )
    decision = plan.decisions.get(module)
    if facts is None:
        return found
    return replace(
        found,
        status=ModuleStatus.DECIDED,
        action=facts.action,
        rule=facts.rule,
        overridden_by=facts.overridden_by,
        hooks=decision.hooks if decision is not None else (),
        provided_by=facts.provided_by,
        distribution=facts.distribution,
        version=facts.version,
        observed=_observed(self_test, facts) if self_test is not None else None,
    )


def _shortest_chains(plan: Plan, module: str) -> tuple[tuple[Chain, ...], int]:
    """Return a shortest chain from each saved object, and the number of omitted objects."""
    graph, distances = plan.graph, plan.graph.distances_to(module)
    # The shortest first: they are the easiest to check in the sources.
    starts = sorted((s for s in graph.roots() if s in distances), key=distances.__getitem__)
    chains: list[Chain] = []
    room = MAX_NODES
    for node in starts[:_MAX_CHAINS]:
        room -= distances[node] + 1
        if room < 0:  # the remaining chains are not shorter
            break
        start, links = node, list[ImportLink]()
        while distances[node] > 0:
            # Any successor that is one step nearer is on a shortest chain.
            nearer = [
                min(graph.edges_between(node, each), key=lambda e: (_weakness(e), not e.names))
                for each in graph.successors(node)
                if distances.get(each) == distances[node] - 1 and graph.depends(node, each)
            ]
            # Of equally short chains, the one with the strongest evidence convinces most.
            edge = min(nearer, key=_weakness)
            links.append(_link(plan, edge))
            node = edge.imported
        chains.append(Chain(start, tuple(links)))
    return tuple(chains), len(starts) - len(chains)


def _link(plan: Plan, edge: Edge) -> ImportLink:
    """Return an edge of the graph with its location, and the number of its other locations."""
    edges = plan.graph.edges_between(edge.importer, edge.imported)
    # By location, because one statement may import several names.
    others = {(each.kind, each.line) for each in edges if each.kind.is_dependency}
    path, count = code_file(plan, edge.importer), len(others - {(edge.kind, edge.line)})
    return ImportLink(edge.importer, edge.imported, edge.kind, path, edge.line, edge.names, count)


def _weakness(evidence: Edge | ImporterFacts) -> int:
    return _STRENGTH.index(evidence.kind)


def _status(plan: Plan, module: str) -> ModuleStatus:
    """Return the status of a module without a decision."""
    # Only imports that never run are known: this needs no decision.
    edges = plan.graph.edges_to(module)
    if edges and not any(edge.kind.is_dependency for edge in edges):
        return ModuleStatus.TYPE_CHECKING_ONLY
    is_absent = any(n.code == "optional-import-missing" and n.subject == module for n in plan.notes)
    return ModuleStatus.EXCLUDED if is_absent else ModuleStatus.UNDECIDED


def _observed(self_test: SelfTestRecord, facts: ModuleFacts) -> str | None:
    """Return what a self-test showed about an interned or mocked module, or None."""
    observed = self_test.observations
    if facts.action is Action.MOCK:
        events = [each for each in observed.mock_events if each.module == facts.module]
        risk = observed_risk(events, self_test.runs)
        return None if risk is MockRisk.NOT_OBSERVED else risk.describe(self_test.runs)
    is_known = facts.action is Action.INTERN and observed.modules
    return f"imported by {observed.importer_of(facts.module)}" if is_known else None
