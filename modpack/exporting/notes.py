"""Hazards and remarks: what does not stop a package but may hurt later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from modpack.core.graph import Location
from modpack.core.names import root_of
from modpack.core.plan import Note, NoteKind, Plan
from modpack.core.rules import Action, Owner, Rule, dead_rules
from modpack.discovery.distributions import DistributionIndex
from modpack.discovery.walk import Walker
from modpack.exporting.presets import requires
from modpack.exporting.problems import place_of


def find_notes(
    plan: Plan,
    walker: Walker,
    rules: Sequence[Rule],
    unused: Sequence[Rule],
    installed: DistributionIndex,
    left_out: Mapping[str, str],
    libraries: Mapping[str, Mapping[str, int]],
) -> Iterator[Note]:
    """Everything a user should know about a plan that can be carried out.

    Args:
        plan: the plan.
        walker: the finished walk behind it.
        rules: the user's rules.
        unused: those of them that matched nothing.
        installed: the distributions of this interpreter.
        left_out: modules that code asks for and that stay absent, with the reason.
        libraries: by root, modules that import dynamically, with the line of their first such
            import, where loaded modules were taken for that.
    """
    dead = list(dead_rules(rules, lambda root: installed.owner(root, None) is not Owner.LOCAL))
    for each in dead:
        yield Note(NoteKind.DEAD_RULE, str(each.rule), str(each))
    known_dead = {id(each.rule) for each in dead}
    yield from _near_misses(plan, [rule for rule in unused if id(rule) not in known_dead])
    yield from _dynamic_imports(plan, walker, libraries)
    yield from _star_imports_of_mocks(plan, walker)
    yield from _absent_modules(walker, left_out)
    yield from _externs_that_need_interned(plan, walker, installed)


def _near_misses(plan: Plan, unused: Sequence[Rule]) -> Iterator[Note]:
    """Rules that matched nothing although something with nearly their name is needed.

    A rule that matches nothing is common and fine; a misspelt one, or one that the shell has
    expanded to a file name, ships the wrong thing.
    """
    roots = sorted({root_of(module) for module in plan.decisions})
    for rule in unused:
        for pattern in rule.pattern.include:
            near = get_close_matches(root_of(pattern), roots, n=1, cutoff=0.85)
            if near and pattern != f"{near[0]}.**" and not rule.pattern.exclude:
                yield Note(
                    NoteKind.UNUSED_RULE,
                    str(rule),
                    f"{rule} matched no module, although {near[0]!r} is needed. Did you mean "
                    f"'{near[0]}.**'?",
                )


def _dynamic_imports(
    plan: Plan, walker: Walker, libraries: Mapping[str, Mapping[str, int]]
) -> Iterator[Note]:
    for root, importers in libraries.items():
        module, line = next(iter(importers.items()))
        others = f", and in {len(importers) - 1} more of its modules" if len(importers) > 1 else ""
        yield Note(
            NoteKind.DYNAMIC_LIBRARY,
            root,
            f"{module} imports by names that are known at run time only{others}: what is loaded "
            f"of {root} here was taken for that",
            place_of(walker, module, line),
        )
    for module in plan.modules(Action.INTERN):
        if module in libraries.get(root_of(module), {}):
            continue
        scan = walker.scan(module)
        if len(scan.unreadable) <= len(scan.listings):
            continue  # they import what the listed folders hold, which is in the plan
        for unreadable in scan.unreadable:
            yield Note(
                NoteKind.DYNAMIC_IMPORT,
                module,
                f"what {unreadable.call} imports is known at run time only. If it is not in "
                "the package already, save it: save_module(...)",
                place_of(walker, module, unreadable.line),
            )


def _star_imports_of_mocks(plan: Plan, walker: Walker) -> Iterator[Note]:
    for module in plan.modules(Action.MOCK):
        for edge in walker.graph.edges_to(module):
            if edge.names == ("*",):
                yield Note(
                    NoteKind.STAR_IMPORT_OF_MOCK,
                    module,
                    f"{edge.importer} takes * from {module}, which is mocked: a stand-in has no "
                    "names to give. Intern or extern it",
                    place_of(walker, edge.importer, edge.line),
                )


def _absent_modules(walker: Walker, left_out: Mapping[str, str]) -> Iterator[Note]:
    for module in walker.open_questions():
        edges = [e for e in walker.graph.edges_to(module) if e.kind.is_dependency]
        if module in left_out and edges:
            place = place_of(walker, edges[0].importer, edges[0].line)
            yield Note(NoteKind.ABSENT, module, left_out[module], place)


def _externs_that_need_interned(
    plan: Plan, walker: Walker, installed: DistributionIndex
) -> Iterator[Note]:
    """Externs whose own code needs what is interned: it would get another copy, or none."""
    told: set[tuple[str, str]] = set()
    representatives = list(_representatives(plan, installed))
    for module in plan.modules(Action.EXTERN):
        location = plan.decisions[module].location
        if location is None:
            continue
        owner = installed.owner(module, location)
        if owner in (Owner.RUNTIME, Owner.STDLIB):
            continue
        if owner is Owner.INSTALLED:
            needed = (o for o in representatives if requires(installed, location, o))
            found: tuple[str, str | None] | None
            found = next(((other.module, None) for other in needed), None)
            how = "its distribution requires that of"
        else:
            found = _imported(module, walker, plan)
            how = "its code imports"
        if found is None:
            continue
        needed_module, place = found
        root, other = root_of(module), root_of(needed_module)
        if (root, other) not in told:
            told.add((root, other))
            yield Note(
                NoteKind.EXTERN_NEEDS_INTERNED,
                module,
                f"{module} is extern, but {how} {needed_module}, which is interned: where the "
                f"package is loaded it will use another copy of {other}, or find none. Intern "
                f"{root} too, or extern {other}",
                place,
            )


def _representatives(plan: Plan, installed: DistributionIndex) -> Iterator[Location]:
    """One interned module of each distribution: what requires that one requires them all."""
    seen: set[object] = set()
    for module in plan.modules(Action.INTERN):
        decision = plan.decisions[module]
        if decision.location is None or decision.rule.owner is Owner.INSTALLED:
            continue  # the policy knows of it: the extern is one that may be absent
        distribution = installed.distribution_of(module, decision.location)
        if distribution is not None and distribution not in seen:
            seen.add(distribution)
            yield decision.location


def _imported(module: str, walker: Walker, plan: Plan) -> tuple[str, str | None] | None:
    """The interned module that loose extern code imports, as far as loose code reaches."""
    interned = {root_of(each) for each in plan.modules(Action.INTERN)}
    seen, todo = {module}, [module]
    while todo:
        current = todo.pop()
        for target, line in _targets(walker, current):
            if target in seen:
                continue
            seen.add(target)
            decision = plan.decisions.get(target)
            if decision is not None and decision.action is Action.INTERN:
                return target, place_of(walker, current, line)
            if root_of(target) in interned or root_of(target) == root_of(module):
                todo.append(target)
    return None


def _targets(walker: Walker, module: str) -> Iterator[tuple[str, int]]:
    """What a module's code imports, names that may be submodules included, and where."""
    for statement in walker.scan(module).imports:
        if statement.kind.is_dependency:
            yield statement.module, statement.line
            for name in statement.names:
                yield f"{statement.module}.{name}", statement.line
