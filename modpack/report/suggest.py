"""Rules for every module that no rule decides, with everything that speaks for them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Final, Protocol

from rich.console import Group, RenderableType
from rich.text import Text

from modpack.core.environment import RecordedDistribution
from modpack.core.graph import CodeKind, Edge, Location
from modpack.core.names import is_within, parents, root_of
from modpack.core.plan import MockRisk, MockUse, PackagingErrorReason, Plan, risk_of
from modpack.core.rules import Action, Owner, RuleOrigin
from modpack.core.scan import ImportKind
from modpack.core.text import counted, printable
from modpack.diagnostics import Diagnostic
from modpack.discovery.distributions import DistributionIndex
from modpack.discovery.finder import HostEnvironment
from modpack.report.format import indented, relative, title
from modpack.report.text import STYLES
from modpack.report.why import ImportLink, as_step

_UNDECIDED: Final = (
    PackagingErrorReason.NO_ACTION,
    PackagingErrorReason.SOURCE_FILE_NOT_FOUND,
)
_NO_SOURCE: Final = (CodeKind.EXTENSION, CodeKind.BYTECODE, CodeKind.BUILTIN, CodeKind.UNKNOWN)


class ModuleOrigin(str, Enum):
    """Where modules come from."""

    OWN = "own"
    """Your own code: loose files and editable installs."""
    INSTALLED = "installed"
    """An installed distribution."""
    MISSING = "missing"
    """They are not installed here."""


class ImportReach(str, Enum):
    """How code comes to need modules, from the strongest to the weakest."""

    HELD = "held"
    """A saved object holds something of theirs."""
    AT_ONCE = "at-once"
    """They are imported as soon as their importers are."""
    IN_FUNCTIONS = "in-functions"
    """They are imported in functions only."""
    GUARDED = "guarded"
    """They are imported only where the code copes with their absence."""


class Staying(Protocol):
    """Tells which installed distributions stay where they are, and why."""

    def why_not_portable(self, module: str, location: Location | None) -> str | None:
        """Why a module's distribution is not taken along; None if it can be."""

    def add_externs(self, externs: Iterable[Location]) -> bool:
        """Learn which modules are extern: what they require stays with them."""

    def is_optional(self, module: Location, importer: Location) -> bool:
        """Whether the distribution of an importer does not require that of a module."""


_MAX_PLACES: Final = 2
_MAX_MODULES: Final = 4
_TITLES: Final = {
    ModuleOrigin.OWN: "your own code",
    ModuleOrigin.INSTALLED: "installed distributions",
    ModuleOrigin.MISSING: "not installed here",
}
_HOW: Final = {
    ImportReach.AT_ONCE: "imported at once",
    ImportReach.IN_FUNCTIONS: "imported in functions only",
    ImportReach.GUARDED: "imported only where its absence is coped with",
}
_ALTERNATIVES: Final = {
    MockRisk.UNUSED: "nothing that can run uses it: {} would do, unless its import has effects",
    MockRisk.IMPORT_TIME: "it is used only while modules are imported: {} may do",
}


@dataclass(frozen=True)
class RuleSuggestion:
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
    kind: ModuleOrigin
    name: str
    why: str = ""
    comes_first: bool = False


class RuleSuggester:
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

    def advise(self, plan: Plan, given: Sequence[RuleSuggestion] = ()) -> list[RuleSuggestion]:
        """Rules for all modules that nothing decides so far.

        Args:
            plan: a plan without a preset.
            given: the advice that was followed in it.
        """
        if self._staying is not None:
            at_once = plan.graph.reachable_nodes(at_once=True)
            externs = (m for m in plan.modules(Action.EXTERN) if m in at_once)
            self._staying.bind(filter(None, map(self._host.locate, externs)))
        suggested = {advice.patterns for advice in given}
        groups: dict[tuple[ModuleOrigin, str], list[str]] = {}
        for problem in plan.problems:
            if problem.code in _UNDECIDED and self._is_open(problem.subject, plan, suggested):
                groups.setdefault(self._group_of(problem), []).append(problem.subject)
        order = list(ModuleOrigin)
        keys = sorted(groups, key=lambda key: (order.index(key[0]), key[1].lower()))
        advice = [self._advice(key, groups, plan) for key in keys]
        return [*self._without_source(plan, suggested), *advice]

    def provider_of(self, module: str) -> tuple[RecordedDistribution | None, bool | None]:
        """What provides a module here, and whether that has compiled code."""
        found = self.index.distribution_of(module, self._host.locate(module))
        if found is None:
            return None, None
        license = self.index.license_of(found)
        provider = RecordedDistribution(found.name, found.version, found.editable, license)
        return provider, self.index.is_compiled(found)

    def _is_open(self, module: str, plan: Plan, suggested: Collection[tuple[str, ...]]) -> bool:
        """Whether a rule is to be found for a module that is a problem."""
        decision = plan.decisions.get(module)
        if decision is not None:  # where it is not installed, another rule may come first
            return decision.rule.pattern.include in suggested
        location = self._host.locate(module)
        is_folder = location is not None and location.kind is CodeKind.NAMESPACE
        return not is_folder  # a mere folder follows the modules in it

    def _group_of(self, problem: Diagnostic) -> tuple[ModuleOrigin, str]:
        module = problem.subject
        location = self._host.locate(module)
        if problem.code == PackagingErrorReason.SOURCE_FILE_NOT_FOUND:
            # The outermost package that is not here: it may be in one that is.
            outer = reversed([module, *parents(module)])
            return ModuleOrigin.MISSING, next(
                (p for p in outer if self._host.locate(p) is None), module
            )
        if self.index.owner(module, location) is not Owner.INSTALLED:
            return ModuleOrigin.OWN, root_of(module)
        found = self.index.distribution_of(module, location)
        return ModuleOrigin.INSTALLED, found.name if found is not None else root_of(module)

    def _advice(
        self,
        key: tuple[ModuleOrigin, str],
        groups: Mapping[tuple[ModuleOrigin, str], list[str]],
        plan: Plan,
    ) -> RuleSuggestion:
        (kind, name), modules = key, groups[key]
        if kind is ModuleOrigin.MISSING:
            return self._about_missing(name, modules, plan)
        others = [module for each in groups if each != key for module in groups[each]]
        patterns = tuple(_patterns(modules, others, self._is_package))
        if kind is ModuleOrigin.OWN:
            return RuleSuggestion(Action.INTERN, patterns, kind, name)
        if self._staying is None:
            return RuleSuggestion(Action.EXTERN, patterns, kind, name)
        why = self._why_not_taken(modules, plan, self._staying)
        action = Action.INTERN if why is None else Action.EXTERN
        return RuleSuggestion(action, patterns, kind, name, why or "")

    def _about_missing(self, name: str, modules: Sequence[str], plan: Plan) -> RuleSuggestion:
        """A stand-in, unless code looks whether the module is there: it would find one."""
        patterns = (f"{name}.**",)
        edges = edges_into(plan, modules)
        asking = next((e for e in edges if e.kind.may_be_absent or self._is_theirs(e)), None)
        is_decided = any(module in plan.decisions for module in modules)
        if asking is None:
            return RuleSuggestion(Action.MOCK, patterns, ModuleOrigin.MISSING, name, "", is_decided)
        why = f"a stand-in would look to {asking.importer} as if it were installed"
        return RuleSuggestion(Action.EXTERN, patterns, ModuleOrigin.MISSING, name, why, is_decided)

    def _is_theirs(self, edge: Edge) -> bool:
        """Whether it is code of an installed distribution that imports something."""
        location = self._host.locate(edge.importer)
        return self.index.owner(edge.importer, location) is Owner.INSTALLED

    def _why_not_taken(self, modules: Sequence[str], plan: Plan, staying: Staying) -> str | None:
        """Why an installed distribution is not taken along; None if it is."""
        first = modules[0]
        location = self._host.locate(first)
        bound = staying.why_not_portable(first, location)
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
    ) -> Iterator[RuleSuggestion]:
        """Compiled parts of what a suggested rule interns."""
        for module in plan.modules(Action.INTERN):
            location = self._host.locate(module)
            if location is None or location.kind not in _NO_SOURCE:
                continue
            can_be_interned = self._native and location.kind is CodeKind.EXTENSION
            is_suggested = plan.decisions[module].rule.pattern.include in suggested
            if is_suggested and not can_be_interned:
                why = f"it is {location.file or location.kind.value}, which cannot be interned"
                owner = self.index.owner(module, location)
                kind = ModuleOrigin.INSTALLED if owner is Owner.INSTALLED else ModuleOrigin.OWN
                yield RuleSuggestion(Action.EXTERN, (module,), kind, module, why, comes_first=True)

    def _is_package(self, module: str) -> bool:
        location = self._host.locate(module)
        return location is not None and location.is_package


def edges_into(plan: Plan, modules: Sequence[str]) -> list[Edge]:
    """The evidence that modules are needed by others."""
    inside = set(modules)
    return [
        edge
        for module in modules
        for edge in plan.graph.edges_to(module)
        if edge.kind.is_dependency and edge.kind is not ImportKind.PARENT
        if edge.importer not in inside
    ]


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


@dataclass(frozen=True)
class Suggestion:
    """A rule to add, and everything that speaks for it.

    Attributes:
        advice: the rule.
        modules: what it decides.
        distribution: the installed distribution, if there is one.
        is_compiled: whether that has compiled code; None without a distribution.
        reach: how the modules are needed.
        importers: who needs them: the strongest evidence first.
        mock_risk: for what could be mocked instead: what would become of that.
    """

    advice: RuleSuggestion
    modules: tuple[str, ...]
    distribution: RecordedDistribution | None = None
    is_compiled: bool | None = None
    reach: ImportReach = ImportReach.AT_ONCE
    importers: tuple[ImportLink, ...] = ()
    mock_risk: MockRisk | None = None


def described(
    adviser: RuleSuggester, given: Sequence[RuleSuggestion], plan: Plan, uses: Sequence[MockUse]
) -> tuple[Suggestion, ...]:
    """What speaks for each rule, once all modules are decided.

    Args:
        adviser: who gave the advice.
        given: the rules.
        plan: the plan with all of them.
        uses: what interned code does with the names of extern modules.
    """
    used: dict[str, list[MockUse]] = {}
    for use in uses:
        used.setdefault(use.module, []).append(use)
    decided, order = _by_rule(plan), list(ImportReach)
    found = []
    for advice in given:
        modules = decided.get(advice.patterns, [])
        first = modules[0] if modules else root_of(advice.patterns[0])
        provider = (
            adviser.provider_of(first) if advice.kind is not ModuleOrigin.MISSING else (None, None)
        )
        edges = sorted(edges_into(plan, modules), key=lambda edge: order.index(_reach([edge])))
        of_these = [use for module in modules for use in used.get(module, ())]
        suggestion = Suggestion(
            advice,
            tuple(modules),
            *provider,
            _reach(edges),
            tuple(as_step(plan, edge) for edge in edges),
            risk_of(of_these) if _can_be_mocked(advice, modules, plan) else None,
        )
        found.append(suggestion)
    return tuple(found)


def mockable(given: Sequence[RuleSuggestion], plan: Plan) -> list[str]:
    """The extern modules that the suggested rules could have mocked: no saved object holds them.

    Args:
        given: the rules.
        plan: the plan with all of them.
    """
    decided = _by_rule(plan)
    found: list[str] = []
    for advice in given:
        modules = decided.get(advice.patterns, [])
        found += modules if _can_be_mocked(advice, modules, plan) else []
    return found


def _by_rule(plan: Plan) -> dict[tuple[str, ...], list[str]]:
    """The modules that rules of the user's decided, by the patterns of these."""
    found: dict[tuple[str, ...], list[str]] = {}
    for module, decision in sorted(plan.decisions.items()):
        if decision.rule.origin is RuleOrigin.USER:
            found.setdefault(decision.rule.pattern.include, []).append(module)
    return found


def _can_be_mocked(advice: RuleSuggestion, modules: Sequence[str], plan: Plan) -> bool:
    """Whether a rule could mock what it makes extern: no saved object holds anything of it."""
    if advice.action is not Action.EXTERN or advice.kind is not ModuleOrigin.INSTALLED:
        return False
    return all(edge.kind is not ImportKind.PICKLE for edge in edges_into(plan, modules))


def _reach(edges: Sequence[Edge]) -> ImportReach:
    kinds = {edge.kind for edge in edges}
    if kinds & {ImportKind.PICKLE, ImportKind.SAVED}:
        return ImportReach.HELD
    if any(kind.runs_at_once for kind in kinds):
        return ImportReach.AT_ONCE
    if kinds and kinds <= {ImportKind.GUARDED}:
        return ImportReach.GUARDED
    return ImportReach.IN_FUNCTIONS if kinds else ImportReach.AT_ONCE


def as_option(action: Action, patterns: Sequence[str]) -> str:
    """A rule as options of a command, quoted for a shell.

    >>> as_option(Action.EXTERN, ["numpy.**"])
    "--extern 'numpy.**'"
    """
    return " ".join(f"--{action.value} {shlex.quote(pattern)}" for pattern in patterns)


def as_toml(
    action: Action,
    patterns: Sequence[str],
    exclude: Sequence[str] = (),
    allow_empty: bool = True,
) -> str:
    """A rule as an entry of ``rules`` in a pyproject.toml.

    >>> print(as_toml(Action.MOCK, ["wandb.**"]), as_toml(Action.EXTERN, ["a.b.**", "a.c.**"]))
    { mock = "wandb.**" } { extern = ["a.b.**", "a.c.**"] }
    """
    left_out = f", exclude = {_value(exclude)}" if exclude else ""
    must_match = "" if allow_empty else ", allow_empty = false"
    return f"{{ {action.value} = {_value(patterns)}{left_out}{must_match} }}"


def _value(patterns: Sequence[str]) -> str:
    return json.dumps(patterns[0] if len(patterns) == 1 else list(patterns))


def reasons(found: Suggestion, folder: Path | None = None) -> Iterator[str]:
    """What speaks for a rule, in short sentences.

    Args:
        found: the rule.
        folder: files below it are shown relative to it.
    """
    yield _what(found)
    yield _need(found, folder)
    if found.advice.why:
        yield found.advice.why
    if found.mock_risk is not None and found.mock_risk in _ALTERNATIVES:
        yield _ALTERNATIVES[found.mock_risk].format(as_option(Action.MOCK, found.advice.patterns))


GivenRow = tuple[Action, Sequence[str], Sequence[str], bool]
"""A rule that the user gave: what it does, its patterns, those that it excludes, and whether it may
match nothing."""


def suggestions_report(
    found: Sequence[Suggestion], folder: Path | None = None, given: Sequence[GivenRow] = ()
) -> RenderableType:
    """Every rule with its reasons, and all of them once more for a pyproject.toml.

    Args:
        found: the rules, in the order in which they must be given.
        folder: files below it are shown relative to it.
        given: the rules that there are already: they come first.
    """
    parts: list[RenderableType] = []
    for kind in ModuleOrigin:
        group = [each for each in found if each.advice.kind is kind]
        if group:
            parts.append(title(_TITLES[kind], "blue"))
            for each in group:
                option = printable(as_option(each.advice.action, each.advice.patterns))
                parts.append(indented(Text(option, STYLES[each.advice.action]), 2))
                told = (Text(printable(reason), "dim") for reason in reasons(each, folder))
                parts += (indented(text, 6) for text in told)
            parts.append("")
    rows = [as_toml(*rule) for rule in given]
    rows += [as_toml(each.advice.action, each.advice.patterns) for each in found]
    lines = ["[tool.modpack]", 'preset = "none"', "rules = [", *(f"    {r}," for r in rows), "]"]
    return Group(*parts, title("in pyproject.toml", "blue"), *map(Text, lines))


def _what(found: Suggestion) -> str:
    """What the modules are."""
    modules = _listed(found.modules)
    if found.advice.kind is ModuleOrigin.MISSING:
        return f"{modules}: not installed here, so that nothing that works here runs it"
    distribution = found.distribution
    if distribution is None:
        return modules
    license = distribution.license or "license unknown"
    code = "compiled code" if found.is_compiled else "pure Python"
    editable = ", an editable install" if distribution.editable else ""
    return f"{modules}: {distribution.name} {distribution.version} ({license}), {code}{editable}"


def _listed(modules: Sequence[str]) -> str:
    """The modules, if they are few; how many there are."""
    if len(modules) <= _MAX_MODULES:
        return ", ".join(modules)
    shown = ", ".join(modules[:_MAX_MODULES])
    return f"{counted(len(modules), 'module')} ({shown}, ...)"


def _need(found: Suggestion, folder: Path | None) -> str:
    if not found.importers:
        return "saved by name"
    if found.reach is ImportReach.HELD:
        held = dict.fromkeys(name for step in found.importers[:1] for name in step.names)
        return f"{found.importers[0].importer} holds {', '.join(held) or 'something of it'}"
    places = dict.fromkeys(step.place or step.importer for step in found.importers)
    shown = ", ".join(relative(place, folder) for place in list(places)[:_MAX_PLACES])
    more = len(places) - _MAX_PLACES
    rest = f" and {counted(more, 'more place')}" if more > 0 else ""
    return f"{_HOW[found.reach]}: {shown}{rest}"
