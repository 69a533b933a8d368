"""Which rule decides a module: the user's rules first, then those of a policy.

Packages that are there for what is in them: no rule decides them, or nobody wrote them.

What the process that exports knows and the sources do not say: evidence from loaded modules.

Nothing is imported and no attribute hook is called: only what ``sys.modules`` holds counts.

The planner: rules and hooks applied to what the walk reaches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from modpack.core.graph import CodeKind, Edge, Environment, Location
from modpack.core.names import parents, root_of
from modpack.core.plan import Decision, PackagingErrorReason, Plan, Problem
from modpack.core.rules import (
    RUNNING_SCRIPT,
    Action,
    Origin,
    Owner,
    Rule,
    deciding_rule,
    inherited,
    saved,
)
from modpack.core.scan import ImportKind
from modpack.discovery.import_scanner import scan_source
from modpack.discovery.walk import Scan, Walker
from modpack.exporting.listed_modules import listed_edges
from modpack.exporting.match_hooks import Match, MatchHooks, Outcome
from modpack.exporting.module_locations import Installed, NothingInstalled
from modpack.exporting.notes import find_notes
from modpack.exporting.package_data import HoldingsPlanner
from modpack.exporting.problems import Absence, AstrayImports, find_problems, why_not_interned


class _Ownership(Protocol):
    def owner(self, module: str, location: Location | None) -> Owner: ...


class Staying(Protocol):
    """Tells which installed distributions stay where they are (:class:`.Portability`)."""

    def why_bound(self, module: str, location: Location | None) -> str | None:
        """Why a module's distribution stays where it is; None if it can be taken along."""

    def bind(self, externs: Iterable[Location]) -> bool:
        """Learn which modules are extern; tells whether more distributions stay for that."""

    def is_optional(self, module: Location, importer: Location) -> bool:
        """Whether the distribution of an importer does not require that of a module."""


class RuleBook:
    """The rules in the order in which they are asked.

    Args:
        walker: knows where modules are, and who asks for them.
        ownership: tells whose a module is.

    Attributes:
        rules: the user's.
        presets: those of a policy, asked where no rule of the user's matches.
        staying: tells apart what :attr:`.Owner.BOUND` stands for, if rules ask for it.
    """

    def __init__(self, walker: Walker, ownership: _Ownership) -> None:
        self.rules: list[Rule] = []
        self.presets: Sequence[Rule] = ()
        self.staying: Staying | None = None
        self._walker = walker
        self._ownership = ownership

    def rule_of(self, module: str) -> Rule | None:
        """The rule that decides a module, if any does."""
        rules = self._all_rules()
        if module == "__main__":
            return self._rule_of_main()
        owner = self._ownership.owner(module, None)
        if owner is Owner.LOCAL:
            owner = self._ownership.owner(module, self._walker.locate(module))
        if owner is Owner.INSTALLED and self.staying is not None:
            return self._rule_of_installed(module, self.staying)
        return deciding_rule(rules, module, owner)

    def _rule_of_main(self) -> Rule | None:
        """The script that runs elsewhere is another one: only a rule that spells it decides."""
        spelled = next((rule for rule in self._all_rules() if rule.spells("__main__")), None)
        is_pickled = any(
            edge.kind is ImportKind.PICKLE for edge in self._walker.graph.edges_to("__main__")
        )
        return spelled if spelled is not None or is_pickled else RUNNING_SCRIPT

    def _rule_of_installed(self, module: str, staying: Staying) -> Rule | None:
        """The rule of an installed module, which says why if its distribution is bound."""
        why = staying.why_bound(module, self._walker.locate(module))
        owner = Owner.INSTALLED if why is None else Owner.BOUND
        rule = deciding_rule(self._all_rules(), module, owner)
        if why is None or rule is None or rule.owner is not Owner.BOUND:
            return rule
        return replace(rule, label=f"{rule}: {why}")

    def is_spelled(self, module: str) -> bool:
        """Whether a rule of the user's names a module literally."""
        return any(rule.spells(module) for rule in self.rules)

    def unused(self, matched: Collection[Rule]) -> list[Rule]:
        """The user's rules that matched no module."""
        known = set(map(id, matched))
        return [rule for rule in self.rules if id(rule) not in known]

    def _all_rules(self) -> list[Rule]:
        return [*self.rules, *self.presets]


_STRENGTH = (Action.INTERN, Action.EXTERN, Action.MOCK)


def leading_child(walker: Walker, decisions: Mapping[str, Decision], parent: str) -> str | None:
    """The child that a package without a rule follows, the strongest action first.

    Args:
        walker: knows the children.
        decisions: by module, those that are made.
        parent: the package.
    """
    edges = walker.graph.edges_to(parent)
    children = [edge.importer for edge in edges if edge.kind is ImportKind.PARENT]
    for action in _STRENGTH:
        for child in children:
            decision = decisions.get(child)
            if decision is not None and decision.action is action:
                return child
    return None


def is_made_up(walker: Walker, module: str) -> bool:
    """Whether a package exists only as the folder of a module whose source was given."""
    edges = walker.graph.edges_to(module)
    is_folder = all(
        edge.kind is ImportKind.PARENT
        and walker.actions.get(edge.importer, Action.INTERN) is Action.INTERN
        for edge in edges
    )
    return is_folder and bool(edges) and walker.locate(module) is None


class _LiveOwnership(Protocol):
    def owner(self, module: str, location: Location | None) -> Owner: ...


def live_edges(
    walker: Walker, decisions: Mapping[str, Decision], ownership: _LiveOwnership
) -> Iterator[Edge]:
    """Evidence for modules that interned code reaches at run time.

    A name that a package gives out lazily (PEP 562) leads to the module where it lives. Of an
    installed distribution whose code imports by names that are known at run time only, the
    modules that are loaded here are needed; likewise where interned code is compiled, whose
    imports nobody can read. Of a package that is saved again, all of it is: it
    holds what such imports led to where it was made.

    Args:
        walker: the walk so far.
        decisions: what was decided by now.
        ownership: tells whose a module is.
    """
    interned = [m for m, d in decisions.items() if d.action is Action.INTERN]
    for module in interned:
        yield from _names_given_out_lazily(walker, module)
    yield from _beside_compiled_code(walker, interned, decisions)
    for importers in dynamic_importers(walker, interned, ownership).values():
        some = next(iter(importers))
        whole = walker.is_from_package(some)
        for module in walker.needed_beside(some):
            is_near = whole or root_of(module) == root_of(some)
            if is_near and module not in decisions and walker.has_source(module):
                importer, line = _nearest(module, importers)
                yield Edge(importer, module, ImportKind.LOADED, line)


def dynamic_importers(
    walker: Walker, interned: list[str], ownership: _LiveOwnership
) -> dict[str, dict[str, int]]:
    """By root: interned modules that import dynamically, of distributions and of packages.

    Returns:
        For each root its modules, with the line of the first such import.
    """
    found: dict[str, dict[str, int]] = {}
    for module in interned:
        unreadable = walker.scan(module).unreadable
        if not unreadable:
            continue
        is_installed = ownership.owner(module, walker.locate(module)) is Owner.INSTALLED
        if is_installed or walker.is_from_package(module):
            found.setdefault(root_of(module), {})[module] = unreadable[0].line
    return found


def _beside_compiled_code(
    walker: Walker, interned: list[str], decisions: Mapping[str, Decision]
) -> Iterator[Edge]:
    compiled: dict[str, str] = {}
    for module in interned:
        location = walker.locate(module)
        if location is not None and location.kind is CodeKind.EXTENSION:
            compiled.setdefault(root_of(module), module)
    for root, importer in compiled.items():
        for module in walker.needed_beside(importer):
            if root_of(module) == root and module not in decisions and walker.locate(module):
                yield Edge(importer, module, ImportKind.LOADED)


def _names_given_out_lazily(walker: Walker, module: str) -> Iterator[Edge]:
    bound = walker.scan(module).bound
    for edge in walker.graph.edges_to(module):
        for name in edge.names:
            if name not in bound and edge.kind.is_dependency:
                home = walker.live_home(module, name)
                if home is not None and home != module:
                    yield Edge(module, home, ImportKind.LOADED, None, (name,))


def _nearest(module: str, importers: Mapping[str, int]) -> tuple[str, int]:
    """The dynamic import that most likely brought a module in: one of a package around it."""
    around = (parent for parent in parents(module) if parent in importers)
    importer = next(around, next(iter(importers)))
    return importer, importers[importer]


_ASKED_FOR = "<add_dependency>"
"""The node of the graph that leads to modules which the user asked for by name."""
_PROVISIONAL = (Origin.IMPLICIT, Origin.PARENT, Origin.PRESET)
"""Rules that decide for want of a rule of the user's, and give way to one that comes later."""


class Ownership(Protocol):
    """Who is responsible for modules where they are exported."""

    def owner(self, module: str, location: Location | None) -> Owner:
        """Who is responsible for a module."""

    def distribution_of(self, module: str, location: Location | None) -> object | None:
        """What tells the distribution that provides a module from others; None for loose code."""

    def requires(self, module: str, location: Location, other: Location) -> bool:
        """Whether a module's distribution requires the distribution of another."""


class Planner:
    """Decides each module once, at the moment at which it is reached.

    Args:
        environments: where modules come from, first choice first.
        ownership: tells whose a module is.
        exporter: what hooks are called with.
        installed: the distributions of this interpreter, for files and metadata that go along.
        scan: reads sources.
    """

    def __init__(
        self,
        environments: Sequence[Environment],
        ownership: Ownership,
        exporter: object,
        installed: Installed | None = None,
        scan: Scan = scan_source,
    ) -> None:
        self.hooks = MatchHooks()
        self.walker = Walker(environments, self._decide, scan)
        self._installed = installed or NothingInstalled()
        self.holdings = HoldingsPlanner(self.walker, self._installed)
        self._rulebook = RuleBook(self.walker, ownership)
        self._decisions: dict[str, Decision] = {}
        self._ownership = ownership
        self._exporter = exporter
        self._matched: dict[str, Rule] = {}
        self._vetoes: dict[str, str] = {}
        self._absence = Absence(self.walker, ownership)
        self._left_out: dict[str, str] = {}
        self._reported: dict[Problem, None] = {}

    @property
    def native(self) -> bool:
        """Whether compiled modules can be interned."""
        return self.holdings.native

    @native.setter
    def native(self, value: bool) -> None:
        self.holdings.native = value

    # -- what the user says ------------------------------------------------------------------

    def add_rule(self, rule: Rule) -> None:
        """Add a rule behind the user's other rules."""
        self._rulebook.rules.append(rule)
        self._reconsider()

    def use_presets(self, presets: Sequence[Rule], staying: Staying | None = None) -> None:
        """Ask these rules where no rule of the user's matches.

        Args:
            presets: the rules.
            staying: tells apart what :attr:`.Owner.BOUND` stands for, if rules ask for it.
        """
        self._rulebook.presets = tuple(presets)
        self._rulebook.staying = staying
        self._reconsider()

    def add_source(
        self,
        module: str,
        source: bytes,
        is_package: bool,
        follow: bool,
        why: str = "saved explicitly by name",
    ) -> None:
        """Intern a module whose source is given; only a hook can say otherwise."""
        if self._is_saved(module, why):
            self.walker.provide(module, source, is_package, follow)

    def add_module(self, module: str, follow: bool) -> None:
        """Intern a module that is here; only a hook can say otherwise."""
        problem = why_not_interned(self.walker, module, self.native)
        if problem is not None:
            self._reported[problem] = None
        elif self._is_saved(module, "saved explicitly by name"):
            self.walker.include(module, follow)

    def add_dependency(self, module: str, follow: bool) -> None:
        """Let the rules decide a module that nothing saved may lead to.

        Args:
            module: its path.
            follow: whether to walk on to what it imports, if it is interned.
        """
        if not follow:
            self.walker.end_at(module)
        self.add_resource(_ASKED_FOR, [Edge(_ASKED_FOR, module, ImportKind.SAVED)], follow=True)

    def _is_saved(self, module: str, why: str) -> bool:
        """Decide a module that the user saves by name."""
        self._decisions[module] = decision = self._saved(module, why)
        if decision.action is not Action.INTERN:
            self.walker.graph.mark_root(module)
            self.walker.settle(module, decision.action)
        return decision.action is Action.INTERN

    def _saved(self, module: str, why: str) -> Decision:
        rule = self._rulebook.rule_of(module)
        as_saved = Decision(module, Action.INTERN, saved(module, why))
        if rule is None or rule.action is not Action.INTERN:
            return as_saved
        if self._matched.get(module) is rule:  # its hooks have spoken
            before = self._decisions[module]
            return before if before.overridden_by else as_saved
        outcome = self._ask_hooks(module, rule)
        if outcome.overridden_by is None:
            return as_saved
        return Decision(module, outcome.action, rule, None, outcome.overridden_by, outcome.fired)

    def add_file(self, record: str, why: str) -> bool:
        """Take a file, or the files of a folder, that packaged code looked for.

        Args:
            record: its path below the package's root, with ``/``.
            why: who asks.

        Returns:
            Whether the plan has changed for that; see :meth:`.HoldingsPlanner.add_file`.
        """
        return self.holdings.add_file(self.decisions(), record, why)

    def add_metadata(self, name: str, why: str) -> bool:
        """Take a distribution's metadata that packaged code looked for, without its code.

        Args:
            name: the distribution's name.
            why: who asks.

        Returns:
            Whether the plan has changed for that.
        """
        return self.holdings.add_metadata(self.decisions(), name, why)

    def add_folder(self, record: str) -> None:
        """Let packaged code import the folders around a saved resource, as it can when loaded.

        Args:
            record: the resource's record.
        """
        package = record.rpartition("/")[0].replace("/", ".")
        for folder in (package, *parents(package)) if package else ():
            self.walker.add_folder(folder)
            decision = self._decisions.get(folder)
            if decision is not None and self._folder_rule(folder, decision.rule) != decision.rule:
                self._forget(folder)

    def _folder_rule(self, module: str, rule: Rule | None) -> Rule | None:
        """The rule of a module that may be a folder of resources: those are in the package."""
        if not self.walker.is_folder(module):
            return rule
        if rule is not None and (rule.action is Action.INTERN or rule.spells(module)):
            return rule
        return saved(module, "resources are saved in it")

    def add_resource(self, node: str, edges: Iterable[Edge], follow: bool) -> None:
        """Note what a saved resource refers to, and follow it.

        Args:
            node: the resource's name in the graph.
            edges: its references.
            follow: whether to walk on to the modules that they lead to.
        """
        if follow:
            self.walker.graph.mark_root(node)
            self.walker.reach(list(edges))
        else:
            self.walker.note(list(edges))

    # -- what follows from it ----------------------------------------------------------------

    def plan(self) -> Plan:
        """All decisions, and everything that is wrong or noteworthy by now."""
        decisions = self.decisions()
        problems = [*self._reported, *self._veto_problems(decisions)]
        unused = self._rulebook.unused(self._matched.values())
        required = [rule for rule in unused if not rule.allow_empty]
        problems += find_problems(self.walker, decisions, required, self._left_out, self.native)
        problems += AstrayImports(self.walker, decisions, self._is_own).problems()
        plan = Plan(decisions, tuple(problems), (), self.walker.graph)
        interned = plan.modules(Action.INTERN) if self._rulebook.presets else []
        libraries = dynamic_importers(self.walker, interned, self._ownership)
        rules, ownership = self._rulebook.rules, self._ownership
        notes = find_notes(plan, self.walker, rules, unused, ownership, self._left_out, libraries)
        held = self.holdings.find(decisions)
        return replace(
            plan,
            notes=(*notes, *held.notes),
            files=held.files,
            distributions=held.distributions,
        )

    def _is_own(self, module: str) -> bool:
        """Whether a module is the user's own code, and was not taken from a package."""
        owner = self._ownership.owner(module, self.walker.locate(module))
        return owner is Owner.LOCAL and not self.walker.is_from_package(module)

    def decisions(self) -> dict[str, Decision]:
        """One decision for each module that something leads to, as far as it can be made."""
        self._settle()
        reached = self.walker.graph.reached()
        return {m: self._located(d) for m, d in self._decisions.items() if m in reached}

    def _located(self, decision: Decision) -> Decision:
        """A decision with the place of its module, where that matters."""
        if decision.rule.origin is Origin.IMPLICIT and decision.action is Action.EXTERN:
            return decision
        return replace(decision, location=self.walker.locate(decision.module))

    def _settle(self) -> None:
        """Decide what can be decided: new rules first, then parents after their children."""
        if self.hooks.current is not None:
            return  # a hook asks, in the middle of the walk
        self.walker.retry()
        while (
            self._settle_parents()
            or self._bind_externs()
            or self._take_loaded()
            or self._take_listed()
        ):
            pass

    def _settle_parents(self) -> bool:
        """Let packages that no rule decides follow a child; tells whether any did."""
        progress = False
        for module in list(self.walker.undecided):
            child = leading_child(self.walker, self._decisions, module)
            if child is not None:
                action = self._decisions[child].action
                rule = inherited(action, module, child)
                self._decisions[module] = Decision(module, action, rule)
                self.walker.settle(module, action)
                progress = True
        return progress

    def _bind_externs(self) -> bool:
        """Let what extern distributions require stay with them; tells whether that is news."""
        staying = self._rulebook.staying
        if staying is None:
            return False
        needed = self.walker.graph.reached(at_once=True)
        externs = [
            m for m, d in self._decisions.items() if d.action is Action.EXTERN and m in needed
        ]
        if not staying.bind(filter(None, map(self.walker.locate, externs))):
            return False
        self._reconsider()
        self.walker.retry()
        return True

    def _take_loaded(self) -> bool:
        """Follow what the live process knows, where a policy answers; tells whether it is news."""
        if not self._rulebook.presets:
            return False
        reached = self.walker.graph.reached()
        decisions = {m: d for m, d in self._decisions.items() if m in reached}
        found = list(live_edges(self.walker, decisions, self._ownership))
        return self.walker.reach_more(found)

    def _take_listed(self) -> bool:
        """Follow what own code finds by listing folders; tells whether it is news."""
        reached = self.walker.graph.reached()
        decisions = {m: d for m, d in self._decisions.items() if m in reached}
        found = listed_edges(self.walker, decisions, self._is_own, self._installed)
        return self.walker.reach_more(list(found))

    def _reconsider(self) -> None:
        """Take back what was decided for want of a rule, where there is one by now."""
        for module, decision in list(self._decisions.items()):
            if decision.rule.origin in _PROVISIONAL:
                rule = self._rulebook.rule_of(module)
                if rule is not None and rule != decision.rule:
                    self._forget(module)

    def _forget(self, module: str) -> None:
        del self._decisions[module]
        self._matched.pop(module, None)
        self._vetoes.pop(module, None)
        self.walker.reopen(module)

    def _veto_problems(self, decisions: Mapping[str, Decision]) -> Iterator[Problem]:
        for module, reason in self._vetoes.items():
            if module in decisions:
                chain = self.walker.graph.shortest_path(module)
                yield Problem(module, PackagingErrorReason.VETOED, reason, None, chain)

    # -- one module --------------------------------------------------------------------------

    def _decide(self, module: str) -> Action | None:
        rule = self._folder_rule(module, self._rulebook.rule_of(module))
        if self._is_left_out(module, rule) or rule is None or is_made_up(self.walker, module):
            return None
        outcome = self._ask_hooks(module, rule)
        if module in self._decisions:  # a hook saved it by name
            return self._decisions[module].action
        self._decisions[module] = Decision(
            module, outcome.action, rule, None, outcome.overridden_by, outcome.fired
        )
        return outcome.action

    def _ask_hooks(self, module: str, rule: Rule) -> Outcome:
        self._matched[module] = rule
        match = Match(module, rule, rule.action, self.walker.graph.edges_to(module))
        outcome = self.hooks.run(self._exporter, match)
        if outcome.veto is not None:
            self._vetoes[module] = outcome.veto
        return outcome

    def _is_left_out(self, module: str, rule: Rule | None) -> bool:
        why = self._absence.why(module, rule, self._rulebook.staying)
        if why is None:
            self._left_out.pop(module, None)
        else:
            self._left_out[module] = why
        return why is not None

    def is_spelled(self, module: str) -> bool:
        """Whether a rule of the user's names a module literally."""
        return self._rulebook.is_spelled(module)

    def is_taken(self, module: str) -> bool:
        """Whether there is a module of that name, here or in the package."""
        return module in self.walker.actions or self.walker.locate(module) is not None
