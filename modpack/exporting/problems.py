"""Problems that stop an export, and notes about hazards in the loading environment."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.machinery import SOURCE_SUFFIXES
from pathlib import Path

from modpack.core.graph import CodeKind, Edge, Location
from modpack.core.names import is_within, normalized, root_of
from modpack.core.plan import Decision, Plan
from modpack.core.plan import PackagingErrorReason as Reason
from modpack.core.rules import RUNNING_SCRIPT, Action, Owner, Rule, RuleOrigin, dead_rules
from modpack.core.scan import ImportKind
from modpack.diagnostics import Diagnostic
from modpack.discovery.distributions import DistributionIndex
from modpack.discovery.walk import Walker
from modpack.exporting.presets import Portability

_NO_SOURCE = {
    CodeKind.EXTENSION: Reason.IS_EXTENSION_MODULE,
    CodeKind.BUILTIN: Reason.IS_EXTENSION_MODULE,
    CodeKind.BYTECODE: Reason.NO_DUNDER_FILE,
    CodeKind.UNKNOWN: Reason.NO_DUNDER_FILE,
}

_HINT_FOR_MODULES_WITHOUT_FILE = (
    "Code created this module at run time (exec, types.ModuleType). Write its source to a file on "
    "sys.path, and import it from there."
)


def find_problems(
    walker: Walker,
    decisions: Mapping[str, Decision],
    unmatched: Iterable[Rule],
    left_out: Container[str],
    native: bool,
) -> Iterator[Diagnostic]:
    """Yield all problems of a finished walk, each with its location and import chain.

    Args:
        walker: The finished walk.
        decisions: The decisions.
        unmatched: Rules with ``allow_empty=False`` that match no module.
        left_out: Undecided modules that the package does not need.
        native: Whether native extensions can be interned.
    """
    for module, decision in decisions.items():
        edges = walker.graph.edges_to(module)
        pickled = [edge for edge in edges if edge.kind is ImportKind.PICKLE]
        if decision.rule == RUNNING_SCRIPT and pickled:
            yield _in_script(walker)
        elif decision.action is Action.DENY:
            requirer, location = _requirer(walker, edges)
            text = f"{module!r} is denied by {decision.why}" + (requirer and f", but {requirer}")
            yield _problem(walker, module, Reason.DENIED, text, location)
        elif decision.action is Action.INTERN:
            yield from _interning_problems(walker, decision, decisions, native)
        elif decision.action is Action.MOCK:
            # A saved object needs its real class, which a mock does not replace.
            for edge in pickled:
                text = f"{edge.importer} refers to {', '.join(edge.names)} of {module!r}"
                text += f", which is mocked by {decision.why}"
                yield _problem(walker, module, Reason.MOCKED_BUT_STILL_USED, text)
    for module in walker.reachable_undecided():
        if module not in left_out:
            yield from _undecided_problems(walker, module)
    for rule in unmatched:
        text = f"{rule} matches no module"
        yield Diagnostic.from_code(Reason.EMPTY_MATCH, str(rule), text)


def _requirer(walker: Walker, edges: Sequence[Edge]) -> tuple[str, str | None]:
    """Return a clause that names the importer of a module, and its location.

    The clause is empty if no code depends on the module.
    """
    edge = next((each for each in edges if each.kind.is_dependency), None)
    if edge is None:
        return "", None
    clause = f"{edge.importer} imports it"
    if edge.kind is ImportKind.EXPLICIT:
        clause = "add_dependency requires it"
    elif edge.kind is ImportKind.PICKLE:
        clause = f"{edge.importer} refers to {', '.join(edge.names) or 'it'}"
    return clause, location_in(walker, edge.importer, edge.line)


def file_of(walker: Walker, module: str) -> str:
    """Return the file of a module, or the module path if it has none."""
    location = walker.locate(module)
    return location.file if location is not None and location.file else module


def location_in(walker: Walker, module: str, line: int | None) -> str | None:
    """Return ``file:line`` in a module, or None without a line."""
    return None if line is None else f"{file_of(walker, module)}:{line}"


def folder_problem(walker: Walker, module: str) -> Diagnostic | None:
    """Return a problem if a module that the user saves by name is only a folder.

    Rules may intern such a folder with the modules in it; by itself, it has nothing to save.
    """
    location = walker.locate(module)
    if location is None or location.kind is not CodeKind.NAMESPACE:
        return None
    text = f"{module!r} cannot be saved, because it is a folder without __init__.py"
    return _problem(walker, module, Reason.NO_DUNDER_FILE, text, hint="Save the modules in it.")


def _interning_problems(
    walker: Walker, decision: Decision, decisions: Mapping[str, Decision], native: bool
) -> Iterator[Diagnostic]:
    module, location = decision.module, decision.location
    failure = walker.scan(module).failure
    if module == "__main__":
        yield _in_script(walker)
    elif failure is not None:
        file = file_of(walker, module)
        where = f"{file}:{failure.line}" if failure.line else file
        text = f"{module!r} cannot be parsed: {failure.reason}"
        yield _problem(walker, module, Reason.SOURCE_NOT_PARSABLE, text, where)
    elif location is None and not any(
        # It becomes the folder of a module whose source was given.
        other != module and is_within(other, module) and each.action is Action.INTERN
        for other, each in decisions.items()
    ):
        yield _not_found(walker, module, walker.graph.edges_to(module))
    elif location is not None and location.kind in _NO_SOURCE:
        is_extension, hint = location.kind is CodeKind.EXTENSION, None
        text = (
            "a built-in module" if location.kind is CodeKind.BUILTIN else "a module without a file"
        )
        if location.file is not None:
            if is_extension and native:
                return
            text = location.file + ("" if is_extension else ", not a readable source file")
        elif location.kind is CodeKind.UNKNOWN and walker.is_loaded(module):
            hint = _HINT_FOR_MODULES_WITHOUT_FILE
        reason = _NO_SOURCE[location.kind]
        yield _problem(walker, module, reason, f"{module!r} is {text}", hint=hint)


def _not_found(walker: Walker, module: str, edges: Sequence[Edge]) -> Diagnostic:
    requirer, location = _requirer(walker, edges)
    text = f"{module!r} cannot be found" + (requirer and f", but {requirer}")
    hint = _HINT_FOR_MODULES_WITHOUT_FILE if walker.is_loaded(module) else None
    return _problem(walker, module, Reason.SOURCE_FILE_NOT_FOUND, text, location, hint)


def _undecided_problems(walker: Walker, module: str) -> Iterator[Diagnostic]:
    edges = walker.graph.edges_to(module)
    # A guarded import of a module that does not exist takes its fallback after loading, too.
    found = walker.locate(module) is not None
    needed = [e for e in edges if e.kind.is_dependency and (found or not e.kind.may_be_absent)]
    if not needed:
        return
    if module == "__main__":
        yield _in_script(walker)
    elif not found:
        yield _not_found(walker, module, needed)
    else:
        requirer, location = _requirer(walker, needed)
        text = f"no rule matches {module!r}, but {requirer}"
        yield _problem(walker, module, Reason.NO_ACTION, text, location)


def _in_script(walker: Walker) -> Diagnostic:
    names = {name for edge in walker.graph.edges_to("__main__") for name in edge.names}
    what = ", ".join(sorted(names)) or "code"
    text = f"the package needs {what} from the script that runs (__main__)"
    return _problem(walker, "__main__", Reason.DEFINED_IN_SCRIPT, text)


def _problem(
    walker: Walker,
    module: str,
    reason: Reason,
    message: str,
    location: str | None = None,
    hint: str | None = None,
) -> Diagnostic:
    chain = walker.graph.shortest_path(module)
    return Diagnostic.from_code(reason, module, message, location, chain=chain, hint=hint)


class MissingModules:
    """Decides which modules the package can do without.

    Code of installed distributions imports many modules that are optional, in functions and under
    conditions. If such a module is missing in the export environment, the package does without it.
    This does not apply to the user's own code.

    Args:
        walker: The walk, which has the imports.
        installed: The installed distributions.
    """

    def __init__(self, walker: Walker, installed: DistributionIndex) -> None:
        self._walker = walker
        self._installed = installed

    def why(self, module: str, rule: Rule | None, portability: Portability | None) -> str | None:
        """Return why the package does without a module, or None if the rule decides.

        A rule that names the module explicitly, and does not need its source, always decides.

        Args:
            module: The module path.
            rule: The rule that matches it, if any.
            portability: The preset's view of distributions, if it has one.
        """
        # Implicit rules need no location, which takes time to find.
        if rule is not None and rule.origin is RuleOrigin.IMPLICIT:
            return None
        if rule is not None and rule.action is not Action.INTERN and rule.names_explicitly(module):
            return None
        edges = [e for e in self._walker.graph.edges_to(module) if e.kind.is_dependency]
        # A re-exported package worked without the module, unless a rule of the user wants it.
        if rule is None or rule.origin is RuleOrigin.PRESET:
            without = [
                e.importer for e in edges if self._walker.is_excluded_for(e.importer, module)
            ]
            if edges and len(without) == len(edges):
                return f"{without[0]} comes from a package that was exported without {module}"
        location = self._walker.locate(module)
        if location is None:
            return self._why_not_found(module, rule, edges)
        if rule is None or rule.origin is not RuleOrigin.PRESET or rule.action is not Action.INTERN:
            return None
        # A module that was loaded from a source file may have lost the file since.
        file = location.file or ""
        had_source = file.endswith(tuple(SOURCE_SUFFIXES)) and Path(file).is_absolute()
        is_sourceless = location.kind is CodeKind.UNKNOWN and not had_source
        if is_sourceless and self._walker.is_loaded(module):
            return _why_created_at_run_time(module, edges)
        if portability is not None and self._is_optional(location, edges):
            by = edges[0].importer
            return (
                f"{module} is not loaded, and {by} does not require its distribution, so the "
                "package does without it"
            )
        return None

    def _why_not_found(self, module: str, rule: Rule | None, edges: Sequence[Edge]) -> str | None:
        if all(edge.kind.may_be_absent for edge in edges):
            by = edges[0].importer if edges else "other code"
            return f"{module} is not installed, and {by} imports it conditionally"
        if rule is None or rule.origin is not RuleOrigin.PRESET:
            return None
        if self._walker.is_loaded(module):
            return _why_created_at_run_time(module, edges)
        if all(edge.kind.may_be_absent or self._is_theirs(edge.importer) for edge in edges):
            return f"{module} is not installed, so {edges[0].importer} never imports it"
        return None

    def _is_theirs(self, importer: str) -> bool:
        """Return whether code comes from an installed distribution or a package."""
        is_found = self._walker.locate(importer) is not None
        return is_found and (self._is_installed(importer) or self._walker.is_from_package(importer))

    def _is_installed(self, module: str) -> bool:
        location = self._walker.locate(module)
        return self._installed.owner(module, location) is Owner.INSTALLED

    def _is_optional(self, location: Location, edges: Sequence[Edge]) -> bool:
        """Return whether no loaded or required code needs the module's distribution."""
        if not edges or self._walker.is_loaded(root_of(location.module)):
            return False
        owner = self._installed.distribution_of(location.module, location)
        for importer in (edge.importer for edge in edges):
            origin = self._walker.locate(importer)
            if origin is None or not self._walker.is_loaded(root_of(importer)):
                return False
            own = self._installed.distribution_of(importer, origin)
            # Within one distribution, and next to loose code, nothing shows that it is optional.
            if own is None or owner is None or own == owner or not self._is_installed(importer):
                return False
            if normalized(owner.name) in self._installed.required_closure(own):
                return False
        return True


def _why_created_at_run_time(module: str, edges: Sequence[Edge]) -> str | None:
    """Return that code creates a module at run time, or None if a saved object needs it."""
    if root_of(module) == module and any(each.kind is ImportKind.PICKLE for each in edges):
        return None
    by = edges[0].importer if edges else "other code"
    return f"{module}, which {by} imports, has no file, because code creates it at run time"


def find_notes(
    plan: Plan,
    walker: Walker,
    rules: Sequence[Rule],
    unused: Sequence[Rule],
    installed: DistributionIndex,
    left_out: Mapping[str, str],
    libraries: Mapping[str, Mapping[str, int]],
) -> Iterator[Diagnostic]:
    """Yield the notes of a plan.

    Args:
        plan: The plan.
        walker: The finished walk.
        rules: The user's rules.
        unused: Rules that match no module.
        installed: The installed distributions.
        left_out: Imported modules that the package does without, with the reason.
        libraries: By top-level name, the modules with dynamic imports that were resolved from the
            loaded modules, with the line of the first such import.
    """
    shadowed = list(dead_rules(rules, lambda root: installed.owner(root, None) is not Owner.LOCAL))
    for each in shadowed:
        yield Diagnostic.from_code("shadowed-rule", str(each.rule), str(each))
    # A rule that an earlier one shadows matches no module for that reason.
    known = {id(each.rule) for each in shadowed}
    yield from _near_misses(plan, [rule for rule in unused if id(rule) not in known])
    yield from _dynamic_imports(plan, walker, libraries)
    yield from _star_imports_of_mocks(plan, walker)
    yield from _absent_modules(walker, left_out)


def _near_misses(plan: Plan, unused: Sequence[Rule]) -> Iterator[Diagnostic]:
    """Yield rules that match no module, although a required module has a similar name.

    Rules without a match are common. A misspelled pattern, or one that the shell expanded to a file
    name, is a mistake.
    """
    roots = sorted({root_of(module) for module in plan.decisions})
    for rule in unused:
        for pattern in rule.pattern.include:
            near = get_close_matches(root_of(pattern), roots, n=1, cutoff=0.85)
            if near and pattern != f"{near[0]}.**" and not rule.pattern.exclude:
                text = f"{rule} matches no module, but {near[0]!r} is required"
                hint = f"Did you mean '{near[0]}.**'?"
                yield Diagnostic.from_code("unmatched-rule", str(rule), text, hint=hint)


def _dynamic_imports(
    plan: Plan, walker: Walker, libraries: Mapping[str, Mapping[str, int]]
) -> Iterator[Diagnostic]:
    for root, importers in libraries.items():
        module, line = next(iter(importers.items()))
        more = f" (as do {len(importers) - 1} more of its modules)" if len(importers) > 1 else ""
        yield Diagnostic.from_code(
            "dynamic-import-library",
            root,
            f"{module} imports modules whose names are computed at run time{more}; the package "
            f"includes the modules of {root} that are loaded in this process",
            location_in(walker, module, line),
        )
    for module in plan.modules(Action.INTERN):
        if module in libraries.get(root_of(module), {}):
            continue
        scan, graph = walker.scan(module), plan.graph
        edges = (e for name in graph.successors(module) for e in graph.edges_between(module, name))
        if scan.imports_listed and any(edge.kind is ImportKind.LIVE_MODULE for edge in edges):
            continue  # the package includes the loaded modules of that folder
        for unreadable in scan.unreadable:
            yield Diagnostic.from_code(
                "dynamic-import",
                module,
                f"the name that {unreadable.call} imports is computed at run time",
                location_in(walker, module, unreadable.line),
            )


def _star_imports_of_mocks(plan: Plan, walker: Walker) -> Iterator[Diagnostic]:
    for module in plan.modules(Action.MOCK):
        for edge in walker.graph.edges_to(module):
            if edge.names == ("*",):
                yield Diagnostic.from_code(
                    "star-import-of-mock",
                    module,
                    f"{edge.importer} imports * from {module}, but a mock exports no names",
                    location_in(walker, edge.importer, edge.line),
                )


def _absent_modules(walker: Walker, left_out: Mapping[str, str]) -> Iterator[Diagnostic]:
    for module in walker.reachable_undecided():
        edges = [e for e in walker.graph.edges_to(module) if e.kind.is_dependency]
        if module in left_out and edges:
            location = location_in(walker, edges[0].importer, edges[0].line)
            yield Diagnostic.from_code(
                "optional-import-missing", module, left_out[module], location
            )
