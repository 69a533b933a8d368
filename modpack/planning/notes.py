"""Hazards and remarks: what does not stop a package but may hurt later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from modpack.core.actions import Action, Owner
from modpack.core.location import Location
from modpack.core.names import root_of
from modpack.core.plan import Note, NoteKind, Plan
from modpack.core.rules import Rule, dead_rules
from modpack.discovery.walk import Walker

__all__ = ["find_notes"]


class _Ownership(Protocol):
    def owner(self, module: str, location: Location | None) -> Owner: ...

    def requires(self, module: str, location: Location, other: Location) -> bool: ...


def find_notes(
    plan: Plan, walker: Walker, rules: Sequence[Rule], ownership: _Ownership
) -> Iterator[Note]:
    """Everything a user should know about a plan that can be carried out."""
    for dead in dead_rules(rules, lambda root: ownership.owner(root, None) is not Owner.LOCAL):
        yield Note(NoteKind.DEAD_RULE, str(dead.rule), str(dead))
    yield from _dynamic_imports(plan, walker)
    yield from _star_imports_of_mocks(plan, walker)
    yield from _absent_modules(walker)
    yield from _externs_that_need_interned(plan, walker, ownership)


def _dynamic_imports(plan: Plan, walker: Walker) -> Iterator[Note]:
    for module in plan.modules(Action.INTERN):
        for unreadable in walker.scan(module).unreadable:
            yield Note(
                NoteKind.DYNAMIC_IMPORT,
                module,
                f"what {unreadable.call} imports is known at run time only. If it is not in "
                "the package already, save it: save_module(...)",
                _place(walker, module, unreadable.line),
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
                    _place(walker, edge.importer, edge.line),
                )


def _absent_modules(walker: Walker) -> Iterator[Note]:
    for module in walker.open_questions():
        edges = [e for e in walker.graph.edges_to(module) if e.kind.is_dependency]
        if walker.locate(module) is None and all(e.kind.may_be_absent for e in edges) and edges:
            yield Note(
                NoteKind.ABSENT,
                module,
                f"{module} is not installed here, and {edges[0].importer} copes with that: it "
                "will be absent for the packaged code as well",
                _place(walker, edges[0].importer, edges[0].line),
            )


def _externs_that_need_interned(
    plan: Plan, walker: Walker, ownership: _Ownership
) -> Iterator[Note]:
    """Externs whose own code needs what is interned: it would get another copy, or none."""
    interned = {root_of(m) for m in plan.modules(Action.INTERN)}
    homes = {m: d.location for m, d in plan.decisions.items() if d.action is Action.INTERN}
    for module in plan.modules(Action.EXTERN):
        location = plan.decisions[module].location
        if location is None:
            continue
        if ownership.owner(module, location) is Owner.INSTALLED:
            yield from _required(module, location, homes, ownership.requires)
        else:
            yield from _imported(module, walker, plan, interned)


def _required(
    module: str,
    location: Location,
    homes: dict[str, Location | None],
    requires: Callable[[str, Location, Location], bool],
) -> Iterator[Note]:
    for other, home in homes.items():
        if home is not None and requires(module, location, home):
            yield _hazard(module, other, "its distribution requires that of", None)
            return


def _imported(module: str, walker: Walker, plan: Plan, interned: set[str]) -> Iterator[Note]:
    """Read loose extern code for imports of interned modules, as far as loose code reaches."""
    seen, todo = {module}, [module]
    while todo:
        current = todo.pop()
        for statement in walker.scan(current).imports:
            target = statement.module
            if not statement.kind.is_dependency or target in seen:
                continue
            seen.add(target)
            decision = plan.decisions.get(target)
            if decision is not None and decision.action is Action.INTERN:
                place = _place(walker, current, statement.line)
                yield _hazard(module, target, "its code imports", place)
                return
            if root_of(target) in interned or root_of(target) == root_of(module):
                todo.append(target)


def _hazard(module: str, other: str, how: str, place: str | None) -> Note:
    return Note(
        NoteKind.EXTERN_NEEDS_INTERNED,
        module,
        f"{module} is extern, but {how} {other}, which is interned: where the package is loaded "
        f"it will use another copy of {root_of(other)}, or find none. Intern {root_of(module)} "
        f"too, or extern {root_of(other)}",
        place,
    )


def _place(walker: Walker, module: str, line: int | None) -> str | None:
    location = walker.locate(module)
    file = location.file if location is not None and location.file else module
    return f"{file}:{line}" if line is not None else None
