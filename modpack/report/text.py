"""Reports about packages, plans and environments, for terminals and notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from modpack.archive.base import Shard
from modpack.core.call_signature import Batching
from modpack.core.environment import EnvironmentComparison, EnvironmentRow, RowStatus
from modpack.core.names import root_of
from modpack.core.plan import (
    has_chain_to_show,
    problems_by_cause,
)
from modpack.core.rules import Action, Owner
from modpack.core.scan import ImportKind
from modpack.core.text import counted, human_size, printable
from modpack.diagnostics import Diagnostic, Severity
from modpack.errors import listed, with_hint
from modpack.report.facts import (
    HookFacts,
    ImporterFacts,
    ModuleFacts,
    PackageFacts,
    PlanFacts,
    ResourceFacts,
    hook_target,
    hooks_by_callable,
)
from modpack.report.format import PlainTable, elided, indented, relative, table, title

STYLES = {Action.INTERN: "green", Action.EXTERN: "cyan", Action.MOCK: "yellow", Action.DENY: "red"}
_SHOWN_LOCATIONS = 2
_SHOWN_ROOTS = 8
_IN_ONE_LINE = {Owner.STDLIB: "the standard library", Owner.RUNTIME: "torch and modpack"}
"""Providers whose modules are listed in one line."""
_ADDED = {
    "intern": "{0} interned: ",
    "extern": "{0} extern: ",
    "file": "{1} data files: ",
    "metadata": "metadata of ",
}
"""Labels of the additions of a self-test; modules are counted."""
_ROWS: Final[Mapping[Batching, str]] = {
    "independent": "; rows are independent",
    "dependent": "; calls cannot share a batch",
    "untested": "",
}
_MAX_NAMES = 8
"""Limit of the names that are listed as recorded. Larger numbers are counted only."""
_COLORS = {
    RowStatus.SAME: "",
    RowStatus.SIMILAR: "yellow",
    RowStatus.UNKNOWN: "yellow",
    RowStatus.DIFFERENT: "red",
    RowStatus.MISSING: "red",
}


def package_report(facts: PackageFacts) -> RenderableType:
    """Return the report about a package."""
    return Group(
        _head(facts),
        *_notes(facts.notes, None, "--notes"),
        *_modules(facts.modules, None),
        *_hooks(facts.hooks),
        *_resources(facts),
        *_files(facts.resources),
        "",
        _totals(facts),
    )


def plan_report(facts: PlanFacts, folder: Path | None = None) -> RenderableType:
    """Return the report about a plan, starting with its problems.

    Args:
        facts: The plan.
        folder: Files below it are shown relative to it.
    """
    parts = [
        *_notes(facts.notes, folder),
        *_modules(facts.modules, folder),
        *_files(facts.files),
    ]
    if facts.problems:
        return Group(problems_report(facts.problems, True, folder), *parts)
    return Group(*parts[1:])  # without the empty line before the first group


def problems_report(
    problems: Sequence[Diagnostic], show_chains: bool, folder: Path | None = None
) -> RenderableType:
    """Problems, grouped by cause.

    Args:
        problems: all of them.
        show_chains: whether to show how each subject is reached.
        folder: files below it are shown relative to it.
    """
    parts: list[RenderableType] = [title(counted(len(problems), "problem"), "red")]
    for kind, group in problems_by_cause(problems):
        parts.append(indented(Text(with_hint(kind.meaning, kind.hint), "bold"), 2))
        for problem in group:
            own_hint = "" if problem.hint == kind.hint else problem.hint
            shown = with_hint(relocated(problem, folder).summary, own_hint)
            parts.append(indented(Text(printable(shown)), 4))
            if has_chain_to_show(problem, show_chains):
                chain = f"imported through {' -> '.join(problem.chain)}"
                parts.append(indented(Text(printable(chain), "dim"), 6))
    return Group(*parts)


def _head(facts: PackageFacts) -> RenderableType:
    heading = Text.assemble((printable(facts.path), "bold"), f"  {human_size(facts.size_bytes)}")
    heading.no_wrap, heading.overflow = True, "ignore"  # a pinned URL is copied from here
    rows = [
        ("format", facts.format + (f", written by {facts.writer}" if facts.writer else "")),
        ("exported with", facts.made_with or "not recorded"),
        ("digest", facts.digest),
        ("main resource", "/".join(facts.main_resource) if facts.main_resource else "none"),
        *_calls(facts),
        *_self_test(facts),
        *([("loader", str(facts.loader))] if facts.loader is not None else []),
        *(_shard(each) for each in facts.shards),
    ]
    columns = table(("dim", "left"), ("", "left"))
    for label, value in rows:
        columns.add_row(label, printable(value))
    return Group(heading, indented(columns, 2))


def _shard(shard: Shard) -> tuple[str, str]:
    state = f" ({shard.problem})" if shard.problem is not None else ""
    return "weights", f"{human_size(shard.size_bytes)} in {shard.name} next to the package{state}"


def _calls(facts: PackageFacts) -> Iterator[tuple[str, str]]:
    """Yield a row for the call of each object that was saved with example inputs."""
    for call in facts.call_signatures:
        is_only = call.resource == facts.main_resource or len(facts.call_signatures) == 1
        text = str(call) if is_only else f"{'/'.join(call.resource)}{call}"
        yield "call", text + (_ROWS[call.batching] if call.batch is not None else "")


def _self_test(facts: PackageFacts) -> Iterator[tuple[str, str]]:
    """Yield the rows about the namespace and the self-test."""
    self_test = facts.self_test
    if facts.namespace != "private":
        why = (
            f": {self_test.private_failure}"
            if self_test is not None and self_test.private_failure
            else ""
        )
        yield "namespace", f"{facts.namespace}, because the private namespace fails{why}"
    if self_test is None:
        return
    compared = f"{'compared ' if self_test.cases else ''}{self_test.extent}"
    outcome = f"passed, {compared}" if self_test.passed else f"failed: {self_test.failure}"
    rounds = counted(self_test.rounds, "run")
    yield "self-test", f"{outcome} ({rounds}, Python {self_test.python}, torch {self_test.torch})"
    # Anyone can write such a record without a run, so the text says whose word it is.
    if self_test.observations.modules:
        yield "observed", f"{self_test.observations} (recorded by the package)"
    if facts.waiting is not None:
        yield "imports wait", str(facts.waiting)
    elif self_test.why_none_waits is not None:
        yield "imports wait", f"none: {self_test.why_none_waits}"
    for kind in dict.fromkeys(each.kind for each in self_test.additions):
        names = [each.name for each in self_test.additions if each.kind == kind]
        label = _ADDED[kind].format(counted(len(names), "module"), len(names))
        yield "added", label + elided(names, _SHOWN_ROOTS)
    for schema in self_test.operators:
        yield "operator", f"{schema} (declare it before loading)"


def notes_report(facts: PackageFacts) -> RenderableType:
    """Return all notes of a package."""
    heading = title(counted(len(facts.notes), "note"), "yellow")
    return Group(heading, *(_note(note, None) for note in facts.notes))


def _notes(
    notes: Sequence[Diagnostic], folder: Path | None, option: str = "--json"
) -> list[RenderableType]:
    if not notes:
        return []
    shown = [note for note in notes if note.severity is not Severity.INFO]
    parts: list[RenderableType] = ["", title(counted(len(notes), "note"), "yellow")]
    parts += [_note(note, folder) for note in shown]
    if left := len(notes) - len(shown):
        remark = f"{left} of severity info; {option} lists them"
        parts.append(indented(Text(remark, "dim"), 2))
    return parts


def _note(note: Diagnostic, folder: Path | None) -> RenderableType:
    style = "dim" if note.severity is Severity.INFO else "yellow"
    return indented(Text(printable(str(relocated(note, folder))), style), 2)


def relocated(found: Diagnostic, folder: Path | None) -> Diagnostic:
    """Return a diagnostic whose location is relative to a folder, if it is below the folder."""
    return replace(found, location=found.location and relative(found.location, folder))


def _modules(modules: Sequence[ModuleFacts], folder: Path | None) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for action in (Action.INTERN, Action.EXTERN, Action.MOCK, Action.DENY):
        chosen = [facts for facts in modules if facts.action is action]
        if chosen:
            total = counted(len(chosen), "module")
            # Mocks have sizes too, but their code replaces what the package does not contain.
            size = sum(facts.size_bytes or 0 for facts in chosen if action is Action.INTERN)
            total += f", {human_size(size)}" if size else ""
            parts += ["", title(f"{action.past}: {total}", STYLES[action])]
            parts += _rows_by_rule(chosen, folder)
    return parts


def _rows_by_rule(modules: Sequence[ModuleFacts], folder: Path | None) -> Iterator[RenderableType]:
    """Yield modules by rule; those of Python and torch in one line."""
    width = max(len(printable(facts.module)) for facts in modules)
    each = [facts for facts in modules if facts.provided_by not in _IN_ONE_LINE]
    # User rules come before implicit rules.
    each.sort(key=lambda facts: (facts.why.startswith("implicit"), facts.why, facts.module))
    for why, group in groupby(each, key=lambda facts: facts.why):
        members = list(group)
        if members[0].rule is not None:
            yield indented(Text.assemble(("rule: ", "dim"), printable(why)), 2)
        yield indented(_rows(members, width, folder), 4)
    # Every package needs dozens of them, which tell a reader nothing.
    for owner, name in _IN_ONE_LINE.items():
        chosen = [facts for facts in modules if facts.provided_by is owner]
        if chosen:
            number = counted(len(chosen), "module")
            shown = distinct((root_of(facts.module) for facts in chosen), _SHOWN_ROOTS)
            yield indented(Text.assemble(f"{name}: {number} ", (f"({shown})", "dim")), 2)


def _rows(modules: Sequence[ModuleFacts], width: int, folder: Path | None) -> PlainTable:
    rows = table(("", "left"), ("", "right"), ("dim", "left"))
    rows.columns[0].min_width = min(width, 40)
    for facts in modules:
        origin = facts.requirement or ("" if facts.action is Action.MOCK else size_of(facts))
        rows.add_row(printable(facts.module), printable(origin), _needed_by(facts, folder))
    return rows


def distinct(names: Iterable[str], most: int) -> str:
    """Return the first distinct names, with an ellipsis for the others."""
    return elided(list(dict.fromkeys(map(printable, names))), most)


def size_of(facts: ModuleFacts) -> str:
    """Return the size of a module's code, for people. Empty without code."""
    return human_size(facts.size_bytes) if facts.size_bytes is not None else ""


def _needed_by(facts: ModuleFacts, folder: Path | None) -> str:
    """Return the strongest evidence that a module is needed."""
    importers = sorted((i for i in facts.importers if i.kind.is_dependency), key=_weakness)
    # A package is needed because of its submodules. A real import says more.
    others = (each for each in importers if each.kind is not ImportKind.PARENT)
    verb, names = "needed by", list(dict.fromkeys(relative(i.location, folder) for i in others))
    if not names:
        verb, names = "contains", list(dict.fromkeys(i.importer for i in importers))
    return printable(f"{verb} {listed(names, _SHOWN_LOCATIONS)}") if names else ""


def _weakness(importer: ImporterFacts) -> tuple[bool, bool]:
    # False sorts first: evidence with a line, or a saved object, then imports that always run.
    is_object = importer.kind is ImportKind.PICKLE
    return importer.line is None and not is_object, importer.kind is not ImportKind.REQUIRED


def _hooks(hooks: Sequence[HookFacts]) -> list[RenderableType]:
    """Return the hooks of saved objects, grouped by kind and callable."""
    if not hooks:
        return []
    parts: list[RenderableType] = ["", title(counted(len(hooks), "hook"), "magenta")]
    for (resource, kind, called_name, source), specs in hooks_by_callable(hooks).items():
        targets = list(Counter(map(hook_target, specs)).items())[:_SHOWN_LOCATIONS]
        more = len(specs) - sum(number for _, number in targets)  # lines add up to the heading
        shown = ", ".join(each if n == 1 else f"{each} ({n} times)" for each, n in targets)
        shown += f" and {more} more" if more else ""
        line = Text.assemble(f"{kind} ", ("on ", "dim"), printable(shown))
        line.append(f"  {printable(called_name)}, in {printable(resource)}", "dim")
        parts.append(indented(line, 2))
        parts += [indented(Text(printable(x)), 6) for x in (source or "").splitlines()]
    return parts


def _resources(facts: PackageFacts) -> list[RenderableType]:
    saved = [each for each in facts.resources if not each.kind.comes_with_code]
    if not saved:
        return []
    rows = table(("", "left"), ("", "right"), ("dim", "left"))
    for each in saved:
        size = human_size(each.size_bytes)
        rows.add_row(printable(each.record), size, each.kind.value)
    heading = title(counted(len(saved), "resource"), "blue")
    return ["", heading, indented(rows, 4)]


def _files(resources: Sequence[ResourceFacts]) -> list[RenderableType]:
    """Return the files that were included with the code, counted by owner and kind."""
    groups: dict[tuple[str, str], list[ResourceFacts]] = {}
    for each in resources:
        if each.kind.comes_with_code:
            groups.setdefault((each.owner or "", each.kind.value), []).append(each)
    if not groups:
        return []
    rows = table(("", "left"), ("", "right"), ("", "right"), ("dim", "left"))
    for (owner, kind), files in sorted(groups.items()):
        size = human_size(sum(file.size_bytes for file in files))
        rows.add_row(printable(owner), counted(len(files), "file"), size, kind)
    heading = title(
        f"{counted(sum(map(len, groups.values())), 'file')} included with the code", "blue"
    )
    return ["", heading, indented(rows, 4)]


def _totals(facts: PackageFacts) -> RenderableType:
    code = sum(module.size_bytes or 0 for module in facts.modules)
    other = sum(resource.size_bytes for resource in facts.resources)
    storages = facts.storages
    return Text(
        f"{human_size(storages.size_bytes)} in {counted(storages.count, 'tensor storage')}, "
        f"{human_size(code)} of code, {human_size(other)} in "
        f"{counted(len(facts.resources), 'resource')}; "
        f"{human_size(facts.size_bytes)} in total"
    )


def comparison_report(comparison: EnvironmentComparison, strict: bool = False) -> RenderableType:
    """Return the report about a comparison of environments.

    Args:
        comparison: The export environment, compared with the installed distributions.
        strict: Whether minor differences count as well.
    """
    counting = comparison.deviations if strict else comparison.differences
    minor = [row for row in comparison.deviations if row not in counting]
    same = [row.name for row in comparison.rows if row not in comparison.deviations]
    parts: list[RenderableType] = []
    if counting:
        parts += [title("Different", "red"), _environment_rows(counting)]
    if minor:
        parts += [title("Minor differences", "yellow"), _environment_rows(minor)]
    named = f" ({', '.join(same)})" if 0 < len(same) <= _MAX_NAMES else ""
    parts.append(Text(printable(f"Same: {len(same)} of {len(comparison.rows)}{named}")))
    return Group(*parts)


def _environment_rows(rows: Sequence[EnvironmentRow]) -> RenderableType:
    shown = table(("", "left"), ("", "left"), ("", "left"))
    shown.add_row("", Text("recorded", "dim"), Text("installed", "dim"))
    for row in rows:
        installed = Text(printable(row.installed_text), _COLORS[row.status])
        shown.add_row(printable(row.name), printable(row.recorded or "extern"), installed)
    return indented(shown, 2)
