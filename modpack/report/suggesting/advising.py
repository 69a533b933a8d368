"""Rules for every module that no rule decides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Final, Protocol

from modpack.core.actions import Action, Owner
from modpack.core.environment import RecordedDistribution
from modpack.core.graph import Edge
from modpack.core.imports import ImportKind
from modpack.core.location import CodeKind, Location
from modpack.core.names import is_within, root_of
from modpack.core.plan import PackagingErrorReason, Plan, Problem
from modpack.resolution.distributions import DistributionIndex
from modpack.resolution.host import HostEnvironment

__all__ = ["Advice", "Adviser", "Kind", "Staying", "edges_into"]

_UNDECIDED: Final = (
    PackagingErrorReason.NO_ACTION,
    PackagingErrorReason.SOURCE_FILE_NOT_FOUND,
)
_NO_SOURCE: Final = (CodeKind.EXTENSION, CodeKind.BYTECODE, CodeKind.BUILTIN, CodeKind.UNKNOWN)


class Kind(str, Enum):
    """Where modules come from."""

    OWN = "own"
    """Your own code: loose files and editable installs."""
    INSTALLED = "installed"
    """An installed distribution."""
    MISSING = "missing"
    """They are not installed here."""


class Staying(Protocol):
    """Tells which installed distributions stay where they are, and why."""

    def why_bound(self, module: str, location: Location | None) -> str | None:
        """Why a module's distribution is not taken along; None if it can be."""

    def bind(self, externs: Iterable[Location]) -> bool:
        """Learn which modules are extern: what they require stays with them."""

    def is_optional(self, module: Location, importer: Location) -> bool:
        """Whether the distribution of an importer does not require that of a module."""


@dataclass(frozen=True)
class Advice:
    """A rule to add.

    Attributes:
        action: what it does.
        patterns: what it matches.
        kind: where the modules come from.
        name: the distribution, or the top-level module.
        why: what speaks for the action, where the kind does not say it all.
        comes_first: whether it must stand before rules that were suggested earlier.
    """

    action: Action
    patterns: tuple[str, ...]
    kind: Kind
    name: str
    why: str = ""
    comes_first: bool = False


class Adviser:
    """Finds rules for what a plan leaves undecided. Deciding some modules may bring up others.

    Args:
        index: the installed distributions.
        staying: which of them stay where they are; None if all do.
        native: whether compiled modules can be interned.
    """

    def __init__(
        self, index: DistributionIndex, staying: Staying | None = None, native: bool = False
    ) -> None:
        self.index = index
        self._staying = staying
        self._native = native
        self._host = HostEnvironment()

    def advise(self, plan: Plan, given: Sequence[Advice] = ()) -> list[Advice]:
        """Rules for all modules that nothing decides so far.

        Args:
            plan: a plan without a policy.
            given: the advice that was followed in it.
        """
        self._bind(plan)
        suggested = {advice.patterns for advice in given}
        groups: dict[tuple[Kind, str], list[str]] = {}
        for problem in plan.problems:
            if problem.reason in _UNDECIDED and self._is_open(problem.subject, plan, suggested):
                groups.setdefault(self._group_of(problem), []).append(problem.subject)
        return [
            *self._without_source(plan, suggested),
            *(
                self._advice(kind, name, modules, _others(groups, (kind, name)), plan)
                for (kind, name), modules in sorted(groups.items(), key=_order)
            ),
        ]

    def distribution_of(self, module: str) -> RecordedDistribution | None:
        """What provides a module here."""
        found = self.index.distribution_of(module, self._host.locate(module))
        if found is None:
            return None
        licence = self.index.licence_of(found)
        return RecordedDistribution(found.name, found.version, found.editable, licence)

    def is_compiled(self, module: str) -> bool | None:
        """Whether what provides a module here has compiled code."""
        found = self.index.distribution_of(module, self._host.locate(module))
        return self.index.is_compiled(found) if found is not None else None

    def _bind(self, plan: Plan) -> None:
        if self._staying is not None:
            at_once = plan.graph.reached(at_once=True)
            externs = (m for m in plan.modules(Action.EXTERN) if m in at_once)
            self._staying.bind(filter(None, map(self._host.locate, externs)))

    def _is_open(self, module: str, plan: Plan, suggested: Collection[tuple[str, ...]]) -> bool:
        """Whether a rule is to be found for a module that is a problem."""
        decision = plan.decisions.get(module)
        if decision is not None:  # where it is not installed, another rule may come first
            return decision.rule.pattern.include in suggested
        location = self._host.locate(module)
        is_folder = location is not None and location.kind is CodeKind.NAMESPACE
        return not is_folder  # a mere folder follows the modules in it

    def _group_of(self, problem: Problem) -> tuple[Kind, str]:
        module = problem.subject
        location = self._host.locate(module)
        if problem.reason is PackagingErrorReason.SOURCE_FILE_NOT_FOUND:
            return Kind.MISSING, self._missing_name(module)
        if self.index.owner(module, location) is not Owner.INSTALLED:
            return Kind.OWN, root_of(module)
        found = self.index.distribution_of(module, location)
        return Kind.INSTALLED, found.name if found is not None else root_of(module)

    def _missing_name(self, module: str) -> str:
        """The outermost package of a module that is not here: it may lie in one that is."""
        parts = module.split(".")
        paths = (".".join(parts[:number]) for number in range(1, len(parts) + 1))
        return next((path for path in paths if self._host.locate(path) is None), module)

    def _advice(
        self,
        kind: Kind,
        name: str,
        modules: Sequence[str],
        others: Sequence[str],
        plan: Plan,
    ) -> Advice:
        if kind is Kind.MISSING:
            return self._about_missing(name, modules, plan)
        patterns = tuple(_patterns(modules, others, self._is_package))
        if kind is Kind.OWN:
            return Advice(Action.INTERN, patterns, kind, name)
        if self._staying is None:
            return Advice(Action.EXTERN, patterns, kind, name)
        why = self._why_not_taken(modules, plan, self._staying)
        action = Action.INTERN if why is None else Action.EXTERN
        return Advice(action, patterns, kind, name, why or "")

    def _about_missing(self, name: str, modules: Sequence[str], plan: Plan) -> Advice:
        """A stand-in, unless code looks whether the module is there: it would find one."""
        patterns = (f"{name}.**",)
        edges = edges_into(plan, modules)
        asking = next((e for e in edges if e.kind.may_be_absent or self._is_theirs(e)), None)
        is_decided = any(module in plan.decisions for module in modules)
        if asking is None:
            return Advice(Action.MOCK, patterns, Kind.MISSING, name, "", is_decided)
        why = f"a stand-in would look to {asking.importer} as if it were installed"
        return Advice(Action.EXTERN, patterns, Kind.MISSING, name, why, is_decided)

    def _is_theirs(self, edge: Edge) -> bool:
        """Whether it is code of an installed distribution that imports something."""
        location = self._host.locate(edge.importer)
        return self.index.owner(edge.importer, location) is Owner.INSTALLED

    def _why_not_taken(self, modules: Sequence[str], plan: Plan, staying: Staying) -> str | None:
        """Why an installed distribution is not taken along; None if it is."""
        first = modules[0]
        location = self._host.locate(first)
        bound = staying.why_bound(first, location)
        if bound is not None or location is None or root_of(first) in self._host.loaded():
            return bound
        importers = [e.importer for e in edges_into(plan, modules)]
        homes = [self._host.locate(importer) for importer in importers]
        if homes and all(
            home is not None and staying.is_optional(location, home) for home in homes
        ):
            return f"nothing has loaded it here, and {importers[0]} does not require it"
        return None

    def _without_source(
        self, plan: Plan, suggested: Collection[tuple[str, ...]]
    ) -> Iterator[Advice]:
        """Compiled parts of what a suggested rule interns."""
        for module in plan.modules(Action.INTERN):
            location = self._host.locate(module)
            if location is not None and self._has_no_source(location):
                if plan.decisions[module].rule.pattern.include not in suggested:
                    continue
                why = f"it is {location.file or location.kind.value}, which cannot be interned"
                owner = self.index.owner(module, location)
                kind = Kind.INSTALLED if owner is Owner.INSTALLED else Kind.OWN
                yield Advice(Action.EXTERN, (module,), kind, module, why, comes_first=True)

    def _has_no_source(self, location: Location) -> bool:
        if self._native and location.kind is CodeKind.EXTENSION:
            return False
        return location.kind in _NO_SOURCE

    def _is_package(self, module: str) -> bool:
        location = self._host.locate(module)
        return location is not None and location.is_package


def _order(group: tuple[tuple[Kind, str], object]) -> tuple[int, str]:
    kind, name = group[0]
    return list(Kind).index(kind), name.lower()


def edges_into(plan: Plan, modules: Sequence[str]) -> list[Edge]:
    """The evidence that modules are needed by others."""
    inside = set(modules)
    edges = [
        edge
        for module in modules
        for edge in plan.graph.edges_to(module)
        if edge.kind.is_dependency and edge.kind is not ImportKind.PARENT
        if edge.importer not in inside
    ]
    return edges


def _others(groups: Mapping[tuple[Kind, str], Sequence[str]], mine: object) -> list[str]:
    return [module for key, modules in groups.items() if key != mine for module in modules]


def _patterns(
    modules: Sequence[str], others: Sequence[str], is_package: Callable[[str], bool]
) -> Iterator[str]:
    """Patterns for some modules that match none of some others, as short as can be."""
    todo = [(1, sorted(modules))]
    while todo:
        depth, members = todo.pop()
        for prefix, group in groupby(members, key=lambda m: ".".join(m.split(".")[:depth])):
            inside = list(group)
            if any(is_within(other, prefix) for other in others):
                if prefix in inside:
                    yield prefix
                deeper = [module for module in inside if module != prefix]
                todo += [(depth + 1, deeper)] if deeper else []
            elif inside == [prefix] and not is_package(prefix):
                yield prefix
            else:
                yield f"{prefix}.**"
