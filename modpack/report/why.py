"""The evidence for a module: import chains that lead to it from the saved objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice, pairwise
from typing import Final, NamedTuple

from modpack.archive.base import Archive
from modpack.archive.manifest import read_manifest
from modpack.archive.records import read_environment, read_self_test
from modpack.core.codec import Line, json_keys
from modpack.core.environment import RecordedEnvironment
from modpack.core.graph import DependencyGraph, Edge, simple_paths
from modpack.core.names import GlobGroup, root_of
from modpack.core.observations import MockRisk, observed_risk
from modpack.core.plan import Decision, Plan
from modpack.core.rules import UNRECORDED, Action, Owner, Rule, RuleOrigin
from modpack.core.scan import ImportKind
from modpack.diagnostics import Diagnostic
from modpack.report.facts import Provider, code_file, provider_of
from modpack.report.package_info import facts_of, read_checked_manifest

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
_MAX_STARTS: Final = 10
_MAX_CHAINS: Final = 100
_MAX_AS_SHORT: Final = 3
"""Limit of the shown chains from one saved object that are equally short."""
MAX_NODES: Final = 10_000
"""Limit of the modules and objects on all shown chains. Further chains are counted."""
MAX_COUNTED: Final = 1_000_000
"""Limit of counting equally short chains."""


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
    def location(self) -> str | None:
        """``path:line``, as far as known."""
        if self.line is None:
            return self.path
        return f"{self.path or self.importer}:{self.line}"


@dataclass(frozen=True)
class Chain:
    """An import chain.

    Attributes:
        start: Saved object, or module that was saved by name.
        links: Links from the start to the module. Empty if the module itself was saved.
    """

    start: str
    links: tuple[ImportLink, ...] = ()


@dataclass(frozen=True)
class FoundChains:
    """Chains that lead to one module, the shortest first.

    Attributes:
        chains: The first of them.
        omitted: Number of further chains.
        is_complete: Whether ``omitted`` is exact. If not, there are at least so many.
        equally_short: Number of further chains that start at the same objects and are as short,
            up to :data:`MAX_COUNTED`.
    """

    chains: tuple[Chain, ...] = ()
    omitted: int = 0
    is_complete: bool = True
    equally_short: int = 0


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


class ModuleProvider(NamedTuple):
    """Provider of a module at export.

    Attributes:
        kind: Kind of the provider. None for an interned module.
        distribution: Distribution that contained the module, or None.
        version: Version of the distribution, or None.
    """

    kind: Provider | None
    distribution: str | None = None
    version: str | None = None


@json_keys(
    {
        "is_complete": "search_complete",
        "omitted": "omitted_chains",
        "equally_short": "equally_short_chains",
    },
)
@dataclass(frozen=True, kw_only=True)
class Why:
    """The reasons why a module is in a package, or is not.

    Attributes:
        path: The package, as the user named it.
        module: Path of the module.
        status: What the package has to do with the module.
        action: The decision, or None.
        rule: Rule that matched. None without a decision, or if the package does not record it.
        origin: Origin of the rule, or None.
        overridden_by: Hook that changed the action of the rule, or None.
        hooks: Match hooks that were called for the module, in order.
        provided_by: Provider of the module at export, or None if not recorded.
        distribution: Distribution that contained the module at export, or None.
        version: Version of the distribution, or None.
        chains: Import chains that lead to the module, the shortest first.
        every_chain: Whether all chains were requested (``--all``).
        omitted: Number of further chains.
        is_complete: Whether ``omitted_chains`` is exact. If not, there are at least so many.
        equally_short: Number of further chains that start at the same objects and are as short.
        importers: All locations that import the module directly.
        notes: Notes about the module.
        observed: What the recorded self-test showed about the module, or None.
    """

    path: str
    module: str
    status: ModuleStatus
    action: Action | None = None
    rule: str | None = None
    origin: RuleOrigin | None = None
    overridden_by: str | None = None
    hooks: tuple[str, ...] = ()
    provided_by: Provider | None = None
    distribution: str | None = None
    version: str | None = None
    chains: tuple[Chain, ...] = ()
    every_chain: bool = False
    omitted: int = 0
    is_complete: bool = True
    equally_short: int = 0
    importers: tuple[ImportLink, ...] = ()
    notes: tuple[Diagnostic, ...] = ()
    observed: str | None = None


def why(
    plan: Plan,
    module: str,
    *,
    path: str = "",
    every_chain: bool = False,
    provider: ModuleProvider | None = None,
    observed: str | None = None,
) -> Why:
    """Return the evidence for the decision about a module.

    Args:
        plan: The plan.
        module: Absolute name of the module.
        path: The package, as the user named it.
        every_chain: Whether to return all import chains, up to a limit, instead of the shortest one
            from each saved object.
        provider: Provider of the module at export, if recorded.
        observed: What the recorded self-test showed about the module.

    Raises:
        KeyError: If the plan does not mention the module.
    """
    if module not in plan.decisions and module not in plan.graph:
        raise KeyError(module)
    chains = all_chains(plan, module) if every_chain else shortest_chains(plan, module)
    edges = plan.graph.edges_to(module)
    importing = sorted(edges, key=lambda e: (_weakness(e), e.importer, e.line or 0))
    provider = provider or ModuleProvider(None)
    found = Why(
        path=path,
        module=module,
        status=_status(plan, module),
        provided_by=provider.kind,
        distribution=provider.distribution,
        version=provider.version,
        chains=chains.chains,
        every_chain=every_chain,
        omitted=chains.omitted,
        is_complete=chains.is_complete,
        equally_short=chains.equally_short,
        importers=tuple(import_link(plan, edge) for edge in importing),
        notes=tuple(note for note in plan.notes if note.subject == module),
        observed=observed,
    )
    decision = plan.decisions.get(module)
    if decision is None:
        return found
    is_recorded = decision.rule.label != UNRECORDED
    return replace(
        found,
        action=decision.action,
        rule=str(decision.rule) if is_recorded else None,
        origin=decision.rule.origin if is_recorded else None,
        overridden_by=decision.overridden_by,
        hooks=decision.hooks,
    )


def shortest_chains(plan: Plan, module: str, most: int = _MAX_STARTS) -> FoundChains:
    """Return the shortest chains from each saved object that leads to a module.

    Args:
        plan: The plan.
        module: Path of the module.
        most: Limit of the saved objects, whose chains together have at most :data:`MAX_NODES`
            nodes. Further objects are counted, and so are further chains from the same object.
    """
    graph, distances = plan.graph, plan.graph.distances_to(module)
    starts = sorted((s for s in graph.roots() if s in distances), key=distances.__getitem__)
    paths: list[Sequence[str]] = []
    room = MAX_NODES
    for start in starts[:most]:
        length = distances[start] + 1
        limit = min(_MAX_AS_SHORT, room // length)
        found = list(islice(_shortest_paths(graph, start, distances), limit))
        paths += found
        room -= length * len(found)
    shown = list(dict.fromkeys(path[0] for path in paths))
    as_short = min(_count_shortest(graph, shown, distances) - len(paths), MAX_COUNTED)
    chains = tuple(_chain(plan, path) for path in paths)
    return FoundChains(chains, len(starts) - len(shown), equally_short=as_short)


def all_chains(plan: Plan, module: str, most: int = _MAX_CHAINS) -> FoundChains:
    """Return the chains without cycles that lead to a module, the shortest first.

    Args:
        plan: The plan.
        module: Path of the module.
        most: Limit of the chains, which together have at most :data:`MAX_NODES` nodes. Further
            chains are counted, up to a limit of the search.
    """
    found = simple_paths(plan.graph, module, plan.graph.roots(), most, max_nodes=MAX_NODES)
    return FoundChains(
        tuple(_chain(plan, path) for path in found.paths), found.more, found.is_complete
    )


def _shortest_paths(
    graph: DependencyGraph, start: str, distances: dict[str, int]
) -> Iterator[Sequence[str]]:
    """Yield the shortest paths, those with stronger evidence first."""
    path: list[str] = []
    levels = [[start]]  # nodes to try after each prefix of the path
    while levels:
        if not levels[-1]:
            levels.pop()
            del path[-1:]
            continue
        node = levels[-1].pop()
        if distances[node] == 0:
            yield [*path, node]
            continue
        path.append(node)
        nearer = _nearer(graph, node, distances)
        nearer.sort(key=lambda each: _weakness(_strongest(graph, path[-1], each)))
        levels.append(nearer[::-1])


def _count_shortest(
    graph: DependencyGraph, starts: Sequence[str], distances: dict[str, int]
) -> int:
    """Return the number of shortest paths, up to a limit, without following each."""
    most = MAX_COUNTED + MAX_NODES
    wanted, todo = set(starts), list(starts)
    while todo:
        for following in _nearer(graph, todo.pop(), distances):
            if following not in wanted:
                wanted.add(following)
                todo.append(following)
    numbers: dict[str, int] = {}
    for node in sorted(wanted, key=distances.__getitem__):
        nearer = _nearer(graph, node, distances)
        number = sum(numbers[each] for each in nearer) if distances[node] else 1
        numbers[node] = min(number, most)
    return sum(numbers[start] for start in starts)


def _nearer(graph: DependencyGraph, node: str, distances: dict[str, int]) -> list[str]:
    """Return the imports of a node that are one step nearer to the target."""
    return [
        following
        for following in graph.successors(node)
        if distances.get(following) == distances[node] - 1 and graph.depends(node, following)
    ]


def _chain(plan: Plan, path: Sequence[str]) -> Chain:
    links = []
    for importer, imported in pairwise(path):
        strongest = _strongest(plan.graph, importer, imported)
        edges = plan.graph.edges_between(importer, imported)
        others = {(edge.kind, edge.line) for edge in edges if edge.kind.is_dependency}
        others.discard((strongest.kind, strongest.line))
        links.append(import_link(plan, strongest, len(others)))
    return Chain(path[0], tuple(links))


def import_link(plan: Plan, edge: Edge, others: int = 0) -> ImportLink:
    """Return an edge of the graph with its location.

    Args:
        plan: Plan that the edge belongs to.
        edge: The edge.
        others: Number of further locations with the same evidence.
    """
    path = code_file(plan, edge.importer)
    return ImportLink(
        edge.importer,
        edge.imported,
        edge.kind,
        path=path,
        line=edge.line,
        names=edge.names,
        others=others,
    )


def _strongest(graph: DependencyGraph, importer: str, imported: str) -> Edge:
    """Return the strongest edge. Among equals, edges with names come first."""
    edges = graph.edges_between(importer, imported)
    return min(edges, key=lambda edge: (_weakness(edge), not edge.names))


def _weakness(edge: Edge) -> int:
    return _STRENGTH.index(edge.kind)


def _status(plan: Plan, module: str) -> ModuleStatus:
    if module in plan.decisions:
        return ModuleStatus.DECIDED
    edges = plan.graph.edges_to(module)
    if edges and not any(edge.kind.is_dependency for edge in edges):
        return ModuleStatus.TYPE_CHECKING_ONLY
    is_absent = any(n.code == "optional-import-missing" and n.subject == module for n in plan.notes)
    return ModuleStatus.EXCLUDED if is_absent else ModuleStatus.UNDECIDED


def mentions(plan: Plan, module: str) -> bool:
    """Return whether a plan mentions a module. Saved objects are not modules."""
    return module in plan.decisions or (module in plan.graph and not module.startswith("<"))


def with_mock_runtime(archive: Archive, plan: Plan) -> Plan:
    """Return a plan that includes the modules that mocks need, which no plan lists.

    Args:
        archive: The package.
        plan: Its plan.
    """
    facts = facts_of(archive, read_checked_manifest(archive), plan)
    added = {
        each.module: Decision(
            each.module,
            each.action,
            Rule(each.action, GlobGroup("**"), origin=RuleOrigin.IMPLICIT, label=each.why),
        )
        for each in facts.modules
        if each.module not in plan.decisions
    }
    return replace(plan, decisions={**plan.decisions, **added})


def read_provider(archive: Archive, plan: Plan, module: str) -> ModuleProvider | None:
    """Return the provider of a module at export, or None if not recorded.

    Raises:
        ArchiveError: If the package is damaged.
    """
    decision, manifest = plan.decisions.get(module), read_manifest(archive)
    if decision is None or manifest is None:
        return None
    if decision.action is Action.EXTERN:
        return _provider_of_extern(read_environment(archive, manifest), module)
    owner = next((d for d in plan.distributions if module in d.modules), None)
    return ModuleProvider(None, owner.name, owner.version) if owner is not None else None


def read_observed(archive: Archive, plan: Plan, module: str) -> str | None:
    """Return what the recorded self-test showed about an interned or mocked module, or None.

    Raises:
        ArchiveError: If the package is damaged.
    """
    decision, manifest = plan.decisions.get(module), read_manifest(archive)
    self_test = read_self_test(archive, manifest) if manifest is not None else None
    if decision is None or self_test is None:
        return None
    observed = self_test.observations
    if decision.action is Action.MOCK:
        events = [each for each in observed.mock_events if each.module == module]
        risk = observed_risk(events, self_test.runs)
        return None if risk is MockRisk.NOT_OBSERVED else risk.describe(self_test.runs)
    is_known = decision.action is Action.INTERN and observed.modules
    return f"imported by {observed.importer_of(module)}" if is_known else None


def _provider_of_extern(environment: RecordedEnvironment, module: str) -> ModuleProvider | None:
    kind = provider_of(module, is_installed=False)
    if kind is Owner.STDLIB:
        return ModuleProvider(kind)
    if kind is Owner.RUNTIME and root_of(module) != "modpack":
        return ModuleProvider(kind, "torch", environment.torch)
    found = environment.provider_of(module)
    if found is None:
        return None
    if kind is Owner.LOCAL and not found.editable:
        kind = Owner.INSTALLED
    return ModuleProvider(kind, found.name, found.version)
