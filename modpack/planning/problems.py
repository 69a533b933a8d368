"""Everything that stops a package from being written, found in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from modpack.core.actions import Action
from modpack.core.graph import Edge
from modpack.core.imports import ImportKind
from modpack.core.location import CodeKind
from modpack.core.plan import Decision, PackagingErrorReason, Problem
from modpack.core.rules import Rule
from modpack.discovery.walk import Walker

__all__ = ["find_problems", "place_of"]

_NO_SOURCE = {
    CodeKind.EXTENSION: PackagingErrorReason.IS_EXTENSION_MODULE,
    CodeKind.BUILTIN: PackagingErrorReason.IS_EXTENSION_MODULE,
    CodeKind.BYTECODE: PackagingErrorReason.NO_DUNDER_FILE,
    CodeKind.UNKNOWN: PackagingErrorReason.NO_DUNDER_FILE,
}


def find_problems(
    walker: Walker, decisions: Mapping[str, Decision], unmatched: Iterable[Rule]
) -> Iterator[Problem]:
    """All problems of a finished walk, each with its place and the chain that leads to it."""
    for module, decision in decisions.items():
        if decision.action is Action.DENY:
            yield _problem(walker, module, PackagingErrorReason.DENIED, f"by {decision.why}")
        elif decision.action is Action.INTERN:
            yield from _interning_problems(walker, decision)
        elif decision.action is Action.MOCK:
            yield from _mocking_problems(walker, decision)
    for module in walker.undecided:
        yield from _undecided_problems(walker, module)
    for rule in unmatched:
        yield Problem(str(rule), PackagingErrorReason.EMPTY_MATCH)


def place_of(walker: Walker, edge: Edge) -> str | None:
    """``file:line`` of an edge, in the file that the user can open."""
    location = walker.locate(edge.importer)
    file = location.file if location is not None else None
    if edge.line is None:
        return None
    return f"{file or edge.importer}:{edge.line}"


def _interning_problems(walker: Walker, decision: Decision) -> Iterator[Problem]:
    module = decision.module
    failure = walker.scan(module).failure
    if failure is not None:
        location = walker.locate(module)
        file = location.file if location and location.file else module
        place = f"{file}:{failure.line}" if failure.line else file
        reason = PackagingErrorReason.SOURCE_NOT_PARSABLE
        yield _problem(walker, module, reason, failure.reason, place)
    if module == "__main__":
        yield _problem(walker, module, PackagingErrorReason.NO_DUNDER_FILE, _main_hint(walker))
    elif module in walker.graph.roots() and decision.location is None:
        return  # its source was given
    elif decision.location is None:
        yield _problem(walker, module, PackagingErrorReason.SOURCE_FILE_NOT_FOUND)
    elif decision.location.kind in _NO_SOURCE:
        file = decision.location.file or decision.location.kind.value
        yield _problem(walker, module, _NO_SOURCE[decision.location.kind], f"it is {file}")


def _mocking_problems(walker: Walker, decision: Decision) -> Iterator[Problem]:
    for edge in walker.graph.edges_to(decision.module):
        if edge.kind is ImportKind.PICKLE:
            used = ", ".join(edge.names)
            yield _problem(
                walker,
                decision.module,
                PackagingErrorReason.MOCKED_BUT_STILL_USED,
                f"{edge.importer} holds {used}, but {decision.why}",
            )


def _undecided_problems(walker: Walker, module: str) -> Iterator[Problem]:
    edges = walker.graph.edges_to(module)
    found = walker.locate(module) is not None
    needed = [e for e in edges if e.kind.is_dependency and (found or not e.kind.may_be_absent)]
    if not needed:
        return
    place = place_of(walker, needed[0])
    if module == "__main__":
        yield _problem(walker, module, PackagingErrorReason.NO_DUNDER_FILE, _main_hint(walker))
    elif found:
        yield _problem(walker, module, PackagingErrorReason.NO_ACTION, _by(needed[0]), place)
    else:
        yield _problem(
            walker, module, PackagingErrorReason.SOURCE_FILE_NOT_FOUND, _by(needed[0]), place
        )


def _by(edge: Edge) -> str:
    return f"imported by {edge.importer}" if edge.kind is not ImportKind.PICKLE else (
        f"{edge.importer} holds {', '.join(edge.names)}"
    )


def _main_hint(walker: Walker) -> str:
    names = {name for edge in walker.graph.edges_to("__main__") for name in edge.names}
    return (
        f"{', '.join(sorted(names)) or 'it'} is defined in the script or notebook that runs, "
        "which cannot be imported elsewhere. Move it into a module of its own"
    )


def _problem(
    walker: Walker,
    module: str,
    reason: PackagingErrorReason,
    context: str = "",
    place: str | None = None,
) -> Problem:
    return Problem(module, reason, context, place, walker.graph.shortest_path(module))
