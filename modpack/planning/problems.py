"""Everything that stops a package from being written, found in one pass."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from modpack.core.actions import Action
from modpack.core.graph import Edge
from modpack.core.imports import ImportKind
from modpack.core.location import CodeKind, Location
from modpack.core.names import is_within
from modpack.core.plan import Decision, PackagingErrorReason, Problem
from modpack.core.rules import RUNNING_SCRIPT, Rule
from modpack.discovery.walk import Walker

__all__ = ["find_problems", "place_of", "why_not_interned"]

_SAVED = "it was to be saved by name"

_NO_SOURCE = {
    CodeKind.EXTENSION: PackagingErrorReason.IS_EXTENSION_MODULE,
    CodeKind.BUILTIN: PackagingErrorReason.IS_EXTENSION_MODULE,
    CodeKind.BYTECODE: PackagingErrorReason.NO_DUNDER_FILE,
    CodeKind.UNKNOWN: PackagingErrorReason.NO_DUNDER_FILE,
}

_MADE_BY_CODE = (
    "; code made this module when it ran (exec, types.ModuleType). Write its source into a file "
    "on sys.path, and import it from there"
)


def find_problems(
    walker: Walker,
    decisions: Mapping[str, Decision],
    unmatched: Iterable[Rule],
    left_out: Container[str] = (),
    native: bool = False,
) -> Iterator[Problem]:
    """All problems of a finished walk, each with its place and the chain that leads to it.

    Args:
        walker: the finished walk.
        decisions: what was decided.
        unmatched: rules that had to match something and did not.
        left_out: undecided modules of which it is known that nothing is lost by that.
        native: whether compiled modules can be interned.
    """
    for module, decision in decisions.items():
        if decision.rule == RUNNING_SCRIPT and _is_pickled(walker, module):
            yield _in_script(walker)
        elif decision.action is Action.DENY:
            yield _problem(walker, module, PackagingErrorReason.DENIED, *_denial(walker, decision))
        elif decision.action is Action.INTERN:
            if not (native and _is_extension(decision.location)):
                yield from _interning_problems(walker, decision, decisions)
        elif decision.action is Action.MOCK:
            yield from _mocking_problems(walker, decision)
    for module in walker.open_questions():
        if module in left_out:
            continue
        yield from _undecided_problems(walker, module)
    for rule in unmatched:
        yield Problem(str(rule), PackagingErrorReason.EMPTY_MATCH)


def _denial(walker: Walker, decision: Decision) -> tuple[str, str | None]:
    """By which rule a module is denied and who needs it, and where."""
    edges = [e for e in walker.graph.edges_to(decision.module) if e.kind.is_dependency]
    if not edges:
        return f"by {decision.why}", None
    return f"{_by(edges[0])}, denied by {decision.why}", place_of(walker, edges[0])


def place_of(walker: Walker, edge: Edge) -> str | None:
    """``file:line`` of an edge, in the file that the user can open."""
    location = walker.locate(edge.importer)
    file = location.file if location is not None else None
    if edge.line is None:
        return None
    return f"{file or edge.importer}:{edge.line}"


def why_not_interned(walker: Walker, module: str, native: bool = False) -> Problem | None:
    """Why a module that the user saves by name cannot be interned; None if it can.

    Args:
        walker: knows where it is.
        module: its path.
        native: whether compiled modules can be interned.
    """
    location = walker.locate(module)
    if native and _is_extension(location):
        return None
    if location is None:
        return _problem(walker, module, PackagingErrorReason.SOURCE_FILE_NOT_FOUND, _SAVED)
    if location.kind is CodeKind.NAMESPACE:
        context = f"{_SAVED}, but it is a folder without __init__.py: save the modules in it"
        return _problem(walker, module, PackagingErrorReason.NO_DUNDER_FILE, context)
    if location.kind in _NO_SOURCE:
        context = f"{_SAVED}, but it is {location.file or location.kind.value}"
        return _problem(walker, module, _NO_SOURCE[location.kind], context)
    return None


def _interning_problems(
    walker: Walker, decision: Decision, decisions: Mapping[str, Decision]
) -> Iterator[Problem]:
    module, location = decision.module, decision.location
    failure = walker.scan(module).failure
    if module == "__main__":
        yield _in_script(walker)
    elif failure is not None:
        file = location.file if location is not None and location.file else module
        where = f"{file}:{failure.line}" if failure.line else file
        reason = PackagingErrorReason.SOURCE_NOT_PARSABLE
        yield _problem(walker, module, reason, failure.reason, where)
    elif location is None and not _holds_interned(module, decisions):
        reason = PackagingErrorReason.SOURCE_FILE_NOT_FOUND
        edges = [e for e in walker.graph.edges_to(module) if e.kind.is_dependency]
        context, place = (_by(edges[0]), place_of(walker, edges[0])) if edges else ("", None)
        made = _MADE_BY_CODE if walker.is_loaded(module) else ""
        yield _problem(walker, module, reason, context + made, place)
    elif location is not None and location.kind in _NO_SOURCE:
        file = location.file or location.kind.value
        is_made = location.kind is CodeKind.UNKNOWN and location.file is None
        made = _MADE_BY_CODE if is_made and walker.is_loaded(module) else ""
        yield _problem(walker, module, _NO_SOURCE[location.kind], f"it is {file}{made}")


def _is_extension(location: Location | None) -> bool:
    is_file = location is not None and location.file is not None
    return is_file and location is not None and location.kind is CodeKind.EXTENSION


def _holds_interned(package: str, decisions: Mapping[str, Decision]) -> bool:
    """Whether a package will exist as the folder of a module whose source was given."""
    return any(
        other != package and is_within(other, package) and decision.action is Action.INTERN
        for other, decision in decisions.items()
    )


def _is_pickled(walker: Walker, module: str) -> bool:
    return any(edge.kind is ImportKind.PICKLE for edge in walker.graph.edges_to(module))


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
        yield _in_script(walker)
    elif found:
        yield _problem(walker, module, PackagingErrorReason.NO_ACTION, _by(needed[0]), place)
    else:
        yield _problem(
            walker, module, PackagingErrorReason.SOURCE_FILE_NOT_FOUND, _by(needed[0]), place
        )


def _by(edge: Edge) -> str:
    if edge.kind is ImportKind.SAVED:
        return "added with add_dependency"
    if edge.kind is ImportKind.PICKLE:
        return f"{edge.importer} holds {', '.join(edge.names) or 'it'}"
    return f"imported by {edge.importer}"


def _in_script(walker: Walker) -> Problem:
    names = {name for edge in walker.graph.edges_to("__main__") for name in edge.names}
    context = f"it is needed for {', '.join(sorted(names))}" if names else ""
    return _problem(walker, "__main__", PackagingErrorReason.DEFINED_IN_SCRIPT, context)


def _problem(
    walker: Walker,
    module: str,
    reason: PackagingErrorReason,
    context: str = "",
    place: str | None = None,
) -> Problem:
    return Problem(module, reason, context, place, walker.graph.shortest_path(module))
