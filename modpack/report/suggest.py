"""Suggested rules for the modules that no rule matches, with the reasons for them."""

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
from modpack.report.why import ImportLink, import_link

_UNDECIDED: Final = (
    PackagingErrorReason.NO_ACTION,
    PackagingErrorReason.SOURCE_FILE_NOT_FOUND,
)
_NO_SOURCE: Final = (CodeKind.EXTENSION, CodeKind.BYTECODE, CodeKind.BUILTIN, CodeKind.UNKNOWN)


class ModuleOrigin(str, Enum):
    """Origin of modules."""

    LOCAL = "local"
    """Your own code: loose files and editable installs."""
    INSTALLED = "installed"
    """An installed distribution."""
    MISSING = "missing"
    """Not installed in this environment."""


class ImportReach(str, Enum):
    """The strongest evidence that modules are needed, from the strongest kind to the weakest."""

    PICKLE = "pickle"
    """A saved object contains objects of them."""
    REQUIRED = "required"
    """They are imported together with their importers."""
    FUNCTION = "function"
    """They are imported in functions only."""
    GUARDED = "guarded"
    """They are imported only where the code handles their absence."""


class Staying(Protocol):
    """The choice of the installed distributions that stay extern."""

    def why_not_portable(self, module: str, location: Location | None) -> str | None:
        """Return why the distribution of a module stays extern, or None if it can be interned."""

    def add_externs(self, externs: Iterable[Location]) -> bool:
        """Add extern modules, whose requirements stay extern with them."""

    def is_optional(self, module: Location, importer: Location) -> bool:
        """Return whether the distribution of an importer does not require that of a module."""


_MAX_LOCATIONS: Final = 2
_MAX_MODULES: Final = 4
_TITLES: Final = {
    ModuleOrigin.LOCAL: "your own code",
    ModuleOrigin.INSTALLED: "installed distributions",
    ModuleOrigin.MISSING: "not installed",
}
_REACHES: Final = {
    ImportReach.REQUIRED: "imported at module level",
    ImportReach.FUNCTION: "imported in functions only",
    ImportReach.GUARDED: "imported only where the code handles its absence",
}
_ALTERNATIVES: Final = {
    MockRisk.UNUSED: "unused by reachable code: {} works, unless importing it has side effects",
    MockRisk.IMPORT_TIME: "used only while modules are imported: {} may work",
}


@dataclass(frozen=True)
class RuleSuggestion:
    """A rule to add.

    Attributes:
        action: What the rule does.
        patterns: Patterns that it matches.
        kind: Origin of the modules.
        name: The distribution, or the top-level module.
        why: Reason for the action, in addition to the kind. May be empty.
        comes_first: Whether the rule must precede rules that were suggested earlier.
    """

    action: Action
    patterns: tuple[str, ...]
    kind: ModuleOrigin
    name: str
    why: str = ""
    comes_first: bool = False


class RuleSuggester:
    """Suggests rules for the undecided modules of a plan. Deciding some may reveal others.

    Args:
        index: The installed distributions.
        staying: Choice of those that stay extern. None if all do.
        native: Whether native extensions can be interned.
    """

    def __init__(
        self, index: DistributionIndex, staying: Staying | None = None, native: bool = False
    ) -> None:
        self.index = index
        self._staying = staying
        self._native = native
        self._host = HostEnvironment()

    def advise(self, plan: Plan, given: Sequence[RuleSuggestion] = ()) -> list[RuleSuggestion]:
        """Suggest rules for all modules that are undecided so far.

        Args:
            plan: A plan without a preset.
            given: The suggestions that it follows already.
        """
        if self._staying is not None:
            at_once = plan.graph.reachable_nodes(at_once=True)
            externs = (m for m in plan.modules(Action.EXTERN) if m in at_once)
            self._staying.add_externs(filter(None, map(self._host.locate, externs)))
        suggested = {advice.patterns for advice in given}
        groups: dict[tuple[ModuleOrigin, str], list[str]] = {}
        for problem in plan.problems:
            if problem.code in _UNDECIDED and self._is_open(problem.subject, plan, suggested):
                groups.setdefault(self._group_of(problem), []).append(problem.subject)
        order = list(ModuleOrigin)
        keys = sorted(groups, key=lambda key: (order.index(key[0]), key[1].lower()))
        advice = [self._suggest(key, groups, plan) for key in keys]
        return [*self._externs_without_source(plan, suggested), *advice]

    def provider_of(self, module: str) -> tuple[RecordedDistribution | None, bool | None]:
        """Return the distribution of a module, and whether it contains native code."""
        found = self.index.distribution_of(module, self._host.locate(module))
        if found is None:
            return None, None
        license = self.index.license_of(found)
        provider = RecordedDistribution(found.name, found.version, found.editable, license)
        return provider, self.index.has_native_code(found)

    def _is_open(self, module: str, plan: Plan, suggested: Collection[tuple[str, ...]]) -> bool:
        """Return whether a module with a problem still needs a rule."""
        decision = plan.decisions.get(module)
        if decision is not None:  # if it is not installed, another rule may precede this one
            return decision.rule.pattern.include in suggested
        location = self._host.locate(module)
        is_folder = location is not None and location.kind is CodeKind.NAMESPACE
        return not is_folder  # a namespace package follows the modules in it

    def _group_of(self, problem: Diagnostic) -> tuple[ModuleOrigin, str]:
        module = problem.subject
        location = self._host.locate(module)
        if problem.code == PackagingErrorReason.SOURCE_FILE_NOT_FOUND:
            # The outermost missing package: it may be in a package that is installed.
            outer = reversed([module, *parents(module)])
            return ModuleOrigin.MISSING, next(
                (p for p in outer if self._host.locate(p) is None), module
            )
        if self.index.owner(module, location) is not Owner.INSTALLED:
            return ModuleOrigin.LOCAL, root_of(module)
        found = self.index.distribution_of(module, location)
        return ModuleOrigin.INSTALLED, found.name if found is not None else root_of(module)

    def _suggest(
        self,
        key: tuple[ModuleOrigin, str],
        groups: Mapping[tuple[ModuleOrigin, str], list[str]],
        plan: Plan,
    ) -> RuleSuggestion:
        (kind, name), modules = key, groups[key]
        if kind is ModuleOrigin.MISSING:
            return self._suggest_for_missing(name, modules, plan)
        others = [module for each in groups if each != key for module in groups[each]]
        patterns = tuple(_patterns(modules, others, self._is_package))
        if kind is ModuleOrigin.LOCAL:
            return RuleSuggestion(Action.INTERN, patterns, kind, name)
        if self._staying is None:
            return RuleSuggestion(Action.EXTERN, patterns, kind, name)
        why = self._why_extern(modules, plan, self._staying)
        action = Action.INTERN if why is None else Action.EXTERN
        return RuleSuggestion(action, patterns, kind, name, why or "")

    def _suggest_for_missing(self, name: str, modules: Sequence[str], plan: Plan) -> RuleSuggestion:
        """Suggest a mock, unless code tests for the module: a mock would pass the test."""
        patterns = (f"{name}.**",)
        edges = edges_into(plan, modules)
        asking = next(
            (e for e in edges if e.kind.may_be_absent or self._is_by_installed_code(e)), None
        )
        is_decided = any(module in plan.decisions for module in modules)
        if asking is None:
            return RuleSuggestion(Action.MOCK, patterns, ModuleOrigin.MISSING, name, "", is_decided)
        why = f"a mock would look installed to {asking.importer}"
        return RuleSuggestion(Action.EXTERN, patterns, ModuleOrigin.MISSING, name, why, is_decided)

    def _is_by_installed_code(self, edge: Edge) -> bool:
        """Return whether the importer belongs to an installed distribution."""
        location = self._host.locate(edge.importer)
        return self.index.owner(edge.importer, location) is Owner.INSTALLED

    def _why_extern(self, modules: Sequence[str], plan: Plan, staying: Staying) -> str | None:
        """Return why an installed distribution stays extern, or None if it can be interned."""
        first = modules[0]
        location = self._host.locate(first)
        bound = staying.why_not_portable(first, location)
        if bound is not None or location is None or root_of(first) in self._host.loaded():
            return bound
        importers = [e.importer for e in edges_into(plan, modules)]
        sources = [self._host.locate(importer) for importer in importers]
        if sources and all(
            source is not None and staying.is_optional(location, source) for source in sources
        ):
            return f"not loaded in this process, and not required by {importers[0]}"
        return None

    def _externs_without_source(
        self, plan: Plan, suggested: Collection[tuple[str, ...]]
    ) -> Iterator[RuleSuggestion]:
        """Suggest extern rules for modules that a suggested rule interns without source."""
        for module in plan.modules(Action.INTERN):
            location = self._host.locate(module)
            if location is None or location.kind not in _NO_SOURCE:
                continue
            can_be_interned = self._native and location.kind is CodeKind.EXTENSION
            is_suggested = plan.decisions[module].rule.pattern.include in suggested
            if is_suggested and not can_be_interned:
                why = f"{location.file or location.kind.value} cannot be interned"
                owner = self.index.owner(module, location)
                kind = ModuleOrigin.INSTALLED if owner is Owner.INSTALLED else ModuleOrigin.LOCAL
                yield RuleSuggestion(Action.EXTERN, (module,), kind, module, why, comes_first=True)

    def _is_package(self, module: str) -> bool:
        location = self._host.locate(module)
        return location is not None and location.is_package


def edges_into(plan: Plan, modules: Sequence[str]) -> list[Edge]:
    """Return the evidence that other modules need some modules."""
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
    """Yield the shortest patterns that match some modules and none of some others."""
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
    """A suggested rule, with the reasons for it.

    Attributes:
        advice: The rule.
        modules: Modules that the rule decides.
        distribution: The installed distribution, or None.
        is_native: Whether the distribution contains native code. None without a distribution.
        reach: The strongest evidence that the modules are needed.
        importers: Locations that need the modules, the strongest evidence first.
        mock_risk: Effect of a mock instead of the rule. None if a mock cannot replace the rule.
    """

    advice: RuleSuggestion
    modules: tuple[str, ...]
    distribution: RecordedDistribution | None = None
    is_native: bool | None = None
    reach: ImportReach = ImportReach.REQUIRED
    importers: tuple[ImportLink, ...] = ()
    mock_risk: MockRisk | None = None


def described(
    adviser: RuleSuggester, given: Sequence[RuleSuggestion], plan: Plan, uses: Sequence[MockUse]
) -> tuple[Suggestion, ...]:
    """Return the suggestions with their reasons, once all modules are decided.

    Args:
        adviser: Source of the suggestions.
        given: The rules.
        plan: The plan with all of them.
        uses: Uses of the names of extern modules in interned code.
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
        uses_of_modules = [use for module in modules for use in used.get(module, ())]
        suggestion = Suggestion(
            advice,
            tuple(modules),
            *provider,
            _reach(edges),
            tuple(import_link(plan, edge) for edge in edges),
            risk_of(uses_of_modules) if _can_be_mocked(advice, modules, plan) else None,
        )
        found.append(suggestion)
    return tuple(found)


def mockable(given: Sequence[RuleSuggestion], plan: Plan) -> list[str]:
    """Return the extern modules that could be mocked, since no saved object contains them.

    Args:
        given: The rules.
        plan: The plan with all of them.
    """
    decided = _by_rule(plan)
    found: list[str] = []
    for advice in given:
        modules = decided.get(advice.patterns, [])
        found += modules if _can_be_mocked(advice, modules, plan) else []
    return found


def _by_rule(plan: Plan) -> dict[tuple[str, ...], list[str]]:
    """Return the modules that user rules decided, by the patterns of the rules."""
    found: dict[tuple[str, ...], list[str]] = {}
    for module, decision in sorted(plan.decisions.items()):
        if decision.rule.origin is RuleOrigin.USER:
            found.setdefault(decision.rule.pattern.include, []).append(module)
    return found


def _can_be_mocked(advice: RuleSuggestion, modules: Sequence[str], plan: Plan) -> bool:
    """Return whether a rule could mock its extern modules: no saved object contains them."""
    if advice.action is not Action.EXTERN or advice.kind is not ModuleOrigin.INSTALLED:
        return False
    return all(edge.kind is not ImportKind.PICKLE for edge in edges_into(plan, modules))


def _reach(edges: Sequence[Edge]) -> ImportReach:
    kinds = {edge.kind for edge in edges}
    if kinds & {ImportKind.PICKLE, ImportKind.EXPLICIT}:
        return ImportReach.PICKLE
    if any(kind.runs_at_once for kind in kinds):
        return ImportReach.REQUIRED
    if kinds and kinds <= {ImportKind.GUARDED}:
        return ImportReach.GUARDED
    return ImportReach.FUNCTION if kinds else ImportReach.REQUIRED


def as_option(action: Action, patterns: Sequence[str]) -> str:
    """Return a rule as options of a command, quoted for a shell.

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
    """Return a rule as an entry of ``rules`` in a pyproject.toml.

    >>> print(as_toml(Action.MOCK, ["wandb.**"]), as_toml(Action.EXTERN, ["a.b.**", "a.c.**"]))
    { mock = "wandb.**" } { extern = ["a.b.**", "a.c.**"] }
    """
    excluded = f", exclude = {_value(exclude)}" if exclude else ""
    must_match = "" if allow_empty else ", allow_empty = false"
    return f"{{ {action.value} = {_value(patterns)}{excluded}{must_match} }}"


def _value(patterns: Sequence[str]) -> str:
    return json.dumps(patterns[0] if len(patterns) == 1 else list(patterns))


def reasons(found: Suggestion, folder: Path | None = None) -> Iterator[str]:
    """Yield the reasons for a rule, in short sentences.

    Args:
        found: The rule.
        folder: Files below it are shown relative to it.
    """
    yield _description(found)
    yield _evidence(found, folder)
    if found.advice.why:
        yield found.advice.why
    if found.mock_risk is not None and found.mock_risk in _ALTERNATIVES:
        yield _ALTERNATIVES[found.mock_risk].format(as_option(Action.MOCK, found.advice.patterns))


GivenRow = tuple[Action, Sequence[str], Sequence[str], bool]
"""A rule of the user: action, patterns, excluded patterns, and whether it may match nothing."""


def suggestions_report(
    found: Sequence[Suggestion], folder: Path | None = None, given: Sequence[GivenRow] = ()
) -> RenderableType:
    """Return the rules with their reasons, followed by the lines for a pyproject.toml.

    Args:
        found: The rules, in the order in which they must be given.
        folder: Files below it are shown relative to it.
        given: The existing rules, which come first.
    """
    parts: list[RenderableType] = []
    for kind in ModuleOrigin:
        group = [each for each in found if each.advice.kind is kind]
        if group:
            parts.append(title(_TITLES[kind], "blue"))
            for each in group:
                option = printable(as_option(each.advice.action, each.advice.patterns))
                parts.append(indented(Text(option, STYLES[each.advice.action]), 2))
                lines = (Text(printable(reason), "dim") for reason in reasons(each, folder))
                parts += (indented(line, 6) for line in lines)
            parts.append("")
    rows = [as_toml(*rule) for rule in given]
    rows += [as_toml(each.advice.action, each.advice.patterns) for each in found]
    toml = ["[tool.modpack]", 'preset = "none"', "rules = [", *(f"    {r}," for r in rows), "]"]
    return Group(*parts, title("in pyproject.toml", "blue"), *map(Text, toml))


def _description(found: Suggestion) -> str:
    """Return the modules with their distribution."""
    modules = _listed(found.modules)
    if found.advice.kind is ModuleOrigin.MISSING:
        return f"{modules}: not installed, so code that works in this environment does not run it"
    distribution = found.distribution
    if distribution is None:
        return modules
    license = distribution.license or "license unknown"
    code = "native code" if found.is_native else "pure Python"
    editable = ", an editable install" if distribution.editable else ""
    return f"{modules}: {distribution.name} {distribution.version} ({license}), {code}{editable}"


def _listed(modules: Sequence[str]) -> str:
    """Return the modules, or their number with the first few."""
    if len(modules) <= _MAX_MODULES:
        return ", ".join(modules)
    shown = ", ".join(modules[:_MAX_MODULES])
    return f"{counted(len(modules), 'module')} ({shown}, ...)"


def _evidence(found: Suggestion, folder: Path | None) -> str:
    if not found.importers:
        return "saved by name"
    if found.reach is ImportReach.PICKLE:
        names = dict.fromkeys(name for link in found.importers[:1] for name in link.names)
        return f"{found.importers[0].importer} contains {', '.join(names) or 'objects of it'}"
    locations = dict.fromkeys(link.location or link.importer for link in found.importers)
    shown = ", ".join(relative(each, folder) for each in list(locations)[:_MAX_LOCATIONS])
    more = len(locations) - _MAX_LOCATIONS
    rest = f" and {counted(more, 'more location')}" if more > 0 else ""
    return f"{_REACHES[found.reach]}: {shown}{rest}"
