"""The planner, which applies rules and match hooks to the modules that the walk reaches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from modpack.core.graph import Edge, ModuleSource
from modpack.core.names import PACKAGES, is_within, parents
from modpack.core.plan import Decision, PackagingErrorReason, Plan
from modpack.core.rules import (
    LOADED_PACKAGES,
    RUNNING_SCRIPT,
    Action,
    Owner,
    Rule,
    RuleOrigin,
    deciding_rule,
    inherited,
    saved,
)
from modpack.core.scan import ImportKind
from modpack.diagnostics import Diagnostic
from modpack.discovery.distributions import DistributionIndex
from modpack.discovery.import_scanner import scan_source
from modpack.discovery.walk import Scan, Walker
from modpack.exporting.evidence import dynamic_importers, loaded_edges, own_edges
from modpack.exporting.match_hooks import MatchHooks, RuleMatch
from modpack.exporting.package_data import PackageDataPlanner
from modpack.exporting.presets import Portability
from modpack.exporting.problems import MissingModules, find_notes, find_problems, folder_problem

_ADDED_BY_NAME = "<add_dependency>"
"""The graph node with edges to modules that the user added by name."""
_FALLBACK_ORIGINS = (RuleOrigin.IMPLICIT, RuleOrigin.PARENT, RuleOrigin.PRESET)
"""Origins of fallback rules, which a user's later rule overrides."""
_STRENGTH = (Action.INTERN, Action.EXTERN, Action.MOCK)


class Planner:
    """Decides each module once, when the walk reaches it.

    Args:
        environments: The sources of modules, in order of preference.
        installed: The installed distributions.
        exporter: Passed to match hooks.
        scan: Reads sources.

    Attributes:
        hooks: The match hooks.
        walker: Locates modules and records their importers.
        package_data: Decides which files and metadata are included.
    """

    def __init__(
        self,
        environments: Sequence[ModuleSource],
        installed: DistributionIndex,
        exporter: object,
        scan: Scan = scan_source,
    ) -> None:
        self.hooks = MatchHooks()
        self.walker = Walker(environments, self._decide, scan)
        self.package_data = PackageDataPlanner(self.walker, installed)
        self._installed = installed
        self._exporter = exporter
        self._rules: list[Rule] = []
        self._presets: tuple[Rule, ...] = ()
        self._portability: Portability | None = None
        self._decisions: dict[str, Decision] = {}
        self._matched: dict[str, Rule] = {}
        self._vetoes: dict[str, str] = {}
        self._missing_modules = MissingModules(self.walker, installed)
        self._undecided_reasons: dict[str, str] = {}
        self._reported: dict[Diagnostic, None] = {}

    def add_rule(self, rule: Rule) -> None:
        """Add a rule after the user's other rules."""
        self._rules.append(rule)
        self._reconsider()

    def use_presets(self, presets: Sequence[Rule], native: bool = False) -> None:
        """Set the rules that apply if no rule of the user matches.

        Args:
            presets: The rules.
            native: Whether native extensions can be interned.
        """
        self._presets = tuple(presets)
        needs_portability = any(rule.owner is Owner.NOT_PORTABLE for rule in presets)
        self._portability = Portability(self._installed, native) if needs_portability else None
        self.package_data.native = native
        self._reconsider()

    def add_source(
        self,
        module: str,
        source: bytes,
        is_package: bool,
        follow: bool,
        why: str = "saved explicitly by name",
    ) -> None:
        """Intern a module with the given source, unless a match hook overrides that."""
        if self._decide_saved(module, why):
            self.walker.provide(module, source, is_package, follow)

    def add_module(self, module: str, follow: bool) -> None:
        """Intern a module of this process, unless a match hook overrides that."""
        problem = folder_problem(self.walker, module)
        if problem is not None:
            self._reported[problem] = None
        elif self._decide_saved(module, "saved explicitly by name"):
            self.walker.include(module, follow)

    def add_dependency(self, module: str, follow: bool) -> None:
        """Apply the rules to a module, whether or not a saved object leads to it.

        Args:
            module: The module path.
            follow: Whether to follow its imports if it is interned.
        """
        if not follow:
            self.walker.stop_at(module)
        edge = Edge(_ADDED_BY_NAME, module, ImportKind.EXPLICIT)
        self.add_resource(_ADDED_BY_NAME, [edge], follow=True)

    def _decide_saved(self, module: str, why: str) -> bool:
        """Decide a module that the user saves by name; return whether it is interned."""
        self._decisions[module] = decision = self._saved_decision(module, why)
        if decision.action is not Action.INTERN:
            self.walker.graph.mark_root(module)
            self.walker.decide(module, decision.action)
        return decision.action is Action.INTERN

    def _saved_decision(self, module: str, why: str) -> Decision:
        rule = self._rule_of(module)
        as_saved = Decision(module, Action.INTERN, saved(module, why))
        if rule is None or rule.action is not Action.INTERN:
            return as_saved
        if self._matched.get(module) is rule:  # its hooks have already run
            before = self._decisions[module]
            return before if before.overridden_by else as_saved
        decision = self._ask_hooks(module, rule)
        return decision if decision.overridden_by else as_saved

    def add_folder(self, record: str) -> None:
        """Make the parent folders of a saved resource importable, as they are after loading.

        Args:
            record: The record of the resource.
        """
        package = record.rpartition("/")[0].replace("/", ".")
        for folder in (package, *parents(package)) if package else ():
            self.walker.add_folder(folder)
            decision = self._decisions.get(folder)
            if decision is not None and self._folder_rule(folder, decision.rule) != decision.rule:
                self._forget(folder)

    def _folder_rule(self, module: str, rule: Rule | None) -> Rule | None:
        """Return the rule of a module. A folder of saved resources is interned by default."""
        if not self.walker.is_folder(module):
            return rule
        if rule is not None and (rule.action is Action.INTERN or rule.names_explicitly(module)):
            return rule
        return saved(module, "resources are saved in it")

    def add_resource(self, node: str, edges: Iterable[Edge], follow: bool) -> None:
        """Add a saved resource and its references to the graph.

        Args:
            node: The name of the resource's node.
            edges: Its references.
            follow: Whether to follow the modules that it refers to.
        """
        if follow:
            self.walker.graph.mark_root(node)
            self.walker.add_edges(list(edges))
        else:
            self.walker.record_edges(list(edges))

    def plan(self) -> Plan:
        """Return the current plan: all decisions, problems, and notes."""
        decisions = self.decisions()
        # By identity: two rules of the user may be equal, and only the first one decides.
        matched = set(map(id, self._matched.values()))
        unused = [rule for rule in self._rules if id(rule) not in matched]
        required = [rule for rule in unused if not rule.allow_empty]
        native, left_out = self.package_data.native, self._undecided_reasons
        vetoes = (
            Diagnostic.from_code(
                PackagingErrorReason.REFUSED_BY_HOOK,
                module,
                reason,
                chain=self.walker.graph.shortest_path(module),
            )
            for module, reason in self._vetoes.items()
            if module in decisions
        )
        problems = [
            *self._reported,
            *vetoes,
            *find_problems(self.walker, decisions, required, left_out, native),
        ]
        data = self.package_data.find(decisions)
        plan = Plan(
            decisions,
            tuple(problems),
            graph=self.walker.graph,
            files=data.files,
            distributions=data.distributions,
        )
        interned = plan.modules(Action.INTERN) if self._presets else []
        libraries = dynamic_importers(self.walker, interned, self._installed)
        rules, installed = self._rules, self._installed
        notes = find_notes(plan, self.walker, rules, unused, installed, left_out, libraries)
        return replace(plan, notes=(*notes, *data.notes))

    def _is_own(self, module: str) -> bool:
        """Return whether a module is the user's own code and does not come from a package."""
        owner = self._installed.owner(module, self.walker.locate(module))
        return owner is Owner.LOCAL and not self.walker.is_from_package(module)

    def decisions(self) -> dict[str, Decision]:
        """Return one decision for each reached module, as far as it can be decided."""
        self._settle()
        return {
            # Locating implicit externs (the standard library) is not needed.
            m: d
            if d.rule.origin is RuleOrigin.IMPLICIT and d.action in (Action.EXTERN, Action.DENY)
            else replace(d, location=self.walker.locate(m))
            for m, d in self._reached_decisions().items()
        }

    def _reached_decisions(self) -> dict[str, Decision]:
        reached = self.walker.graph.reachable_nodes()
        return {m: d for m, d in self._decisions.items() if m in reached}

    def _settle(self) -> None:
        """Make all possible decisions: new rules first, then parents after their children."""
        if self.hooks.current is not None:
            return  # called by a hook in the middle of the walk
        self.walker.retry()
        # Each step may reach modules that give the earlier steps something to do. All of them only
        # add, so the loop ends.
        while self._settle_parents() or self._add_extern_requirements() or self._follow_evidence():
            pass

    def _settle_parents(self) -> bool:
        """Let undecided packages inherit a child's action; return whether any did."""
        progress = False
        # A copy, because each decision removes and adds undecided modules.
        for module in list(self.walker.undecided):
            child = self._strongest_child(module)
            if child is not None:
                action = self._decisions[child].action
                self._decisions[module] = Decision(module, action, inherited(action, module, child))
                self.walker.decide(module, action)
                progress = True
        return progress

    def _strongest_child(self, parent: str) -> str | None:
        edges = self.walker.graph.edges_to(parent)
        children = [edge.importer for edge in edges if edge.kind is ImportKind.PARENT]
        action_of = {c: self._decisions[c].action for c in children if c in self._decisions}
        followed = [child for child in children if action_of.get(child) in _STRENGTH]
        return min(followed, key=lambda c: _STRENGTH.index(action_of[c]), default=None)

    def _add_extern_requirements(self) -> bool:
        """Keep requirements of extern distributions extern; return whether any is new."""
        if self._portability is None:
            return False
        # Only externs that the package cannot load without: their distributions are installed.
        needed = self.walker.graph.reachable_nodes(at_once=True)
        externs = [
            m for m, d in self._decisions.items() if d.action is Action.EXTERN and m in needed
        ]
        if not self._portability.add_externs(filter(None, map(self.walker.locate, externs))):
            return False
        self._reconsider()
        self.walker.retry()
        return True

    def _follow_evidence(self) -> bool:
        """Follow evidence of imports that sources don't name; return whether any edge is new.

        Loaded modules count only if a preset is active.
        """
        decisions = self._reached_decisions()
        if self._presets:
            if self.walker.add_new_edges(loaded_edges(self.walker, decisions, self._installed)):
                return True
        return self.walker.add_new_edges(own_edges(self.walker, decisions, self._is_own))

    def _reconsider(self) -> None:
        """Withdraw decisions of fallback rules if another rule applies now."""
        for module, decision in list(self._decisions.items()):
            if decision.rule.origin in _FALLBACK_ORIGINS:
                rule = self._rule_of(module)
                if rule is not None and rule != decision.rule:
                    self._forget(module)

    def _forget(self, module: str) -> None:
        del self._decisions[module]
        self._matched.pop(module, None)
        self._vetoes.pop(module, None)
        self.walker.undecide(module)

    def _decide(self, module: str) -> Action | None:
        rule = self._folder_rule(module, self._rule_of(module))
        why = self._missing_modules.why(module, rule, self._portability)
        if why is not None:
            self._undecided_reasons[module] = why
            return None
        self._undecided_reasons.pop(module, None)
        if rule is None or self._is_implied_parent(module):
            return None
        decision = self._ask_hooks(module, rule)
        # A hook may have saved the module by name.
        return self._decisions.setdefault(module, decision).action

    def _rule_of(self, module: str) -> Rule | None:
        """Return the rule that decides a module, if any."""
        rules = [*self._rules, *self._presets]
        if module == "__main__":
            # The loading process runs another script, so only a rule that names it applies.
            explicit = next((rule for rule in rules if rule.names_explicitly("__main__")), None)
            edges = self.walker.graph.edges_to("__main__")
            is_pickled = any(edge.kind is ImportKind.PICKLE for edge in edges)
            return explicit if explicit is not None or is_pickled else RUNNING_SCRIPT
        if is_within(module, PACKAGES):
            edges = self.walker.graph.edges_to(module)
            if module != PACKAGES or any(edge.kind is not ImportKind.PARENT for edge in edges):
                return LOADED_PACKAGES
        # The standard library and torch need no location, which takes time to find.
        owner = self._installed.owner(module, None)
        if owner is Owner.LOCAL:
            owner = self._installed.owner(module, self.walker.locate(module))
        if owner is Owner.INSTALLED and self._portability is not None:
            why = self._portability.why_not_portable(module, self.walker.locate(module))
            if why is not None:
                rule = deciding_rule(rules, module, Owner.NOT_PORTABLE)
                is_not_portable = rule is not None and rule.owner is Owner.NOT_PORTABLE
                return replace(rule, label=f"{rule}: {why}") if rule and is_not_portable else rule
        return deciding_rule(rules, module, owner)

    def _is_implied_parent(self, module: str) -> bool:
        """Return whether a package exists only as the parent of a module with a given source."""
        edges = self.walker.graph.edges_to(module)
        is_folder = all(
            edge.kind is ImportKind.PARENT
            and self.walker.actions.get(edge.importer, Action.INTERN) is Action.INTERN
            for edge in edges
        )
        return is_folder and bool(edges) and self.walker.locate(module) is None

    def _ask_hooks(self, module: str, rule: Rule) -> Decision:
        self._matched[module] = rule
        match = RuleMatch(module, rule, rule.action, self.walker.graph.edges_to(module))
        decision, veto = self.hooks.run(self._exporter, match)
        if veto is not None:
            self._vetoes[module] = veto
        return decision

    def interns(self, module: str) -> bool:
        """Return whether the rules so far intern a module, unless a match hook overrides that."""
        rule = self._rule_of(module)
        return rule is not None and rule.action is Action.INTERN

    def has_explicit_rule(self, module: str) -> bool:
        """Return whether a rule of the user names a module literally."""
        return any(rule.names_explicitly(module) for rule in self._rules)
