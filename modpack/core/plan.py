"""The plan: one decision a module, and everything that is wrong or noteworthy, at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from html import escape
from typing import ClassVar

from modpack.core.codec import Line, ModulePath, json_keys
from modpack.core.graph import DependencyGraph, Location
from modpack.core.rules import Action, Rule
from modpack.core.text import counted
from modpack.diagnostics import Diagnostic, DiagnosticCode, Severity, diagnostic_codes
from modpack.errors import ModpackError, with_hint


class PackagingErrorReason(str, Enum):
    """The codes of problems that stop a package from being written."""

    IS_EXTENSION_MODULE = "native-extension"
    NO_DUNDER_FILE = "source-file-missing"
    SOURCE_FILE_NOT_FOUND = "module-not-found"
    BROKEN_IMPORT = "broken-import"
    SOURCE_NOT_PARSABLE = "invalid-syntax"
    DEFINED_IN_SCRIPT = "defined-in-script"
    NO_ACTION = "no-matching-rule"
    DENIED = "module-denied"
    MOCKED_BUT_STILL_USED = "mock-pickled"
    REFUSED_BY_HOOK = "refused-by-hook"
    DUPLICATE_RECORD = "duplicate-record"
    POSSIBLE_SECRET = "possible-secret"
    EMPTY_MATCH = "rule-matches-nothing"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}>"


@dataclass(frozen=True)
class Decision:
    """What happens to one module, and why.

    Attributes:
        module: its path.
        action: what happens to it.
        rule: the rule that matched.
        location: where its code was found; None if it was not.
        overridden_by: the hook that changed the rule's action, if one did.
        hooks: the match hooks that were called when it was decided, in order.
    """

    module: str
    action: Action
    rule: Rule
    location: Location | None = None
    overridden_by: str | None = None
    hooks: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """The rule, and the hook that overrode it, as a person reads them."""
        if self.overridden_by is None:
            return str(self.rule)
        return f"{self.rule}, overridden by hook {self.overridden_by}"


class FileKind(str, Enum):
    """What a file that goes along with the code is."""

    DATA = "data"
    """Something that the code reads."""
    METADATA = "metadata"
    """What is known of a distribution: its name, version, license, entry points."""
    NATIVE = "native"
    """A native extension, or a native library that one needs."""

    __json_aliases__: ClassVar[Mapping[str, str]] = {"compiled": "native"}
    """Values in packages of early versions."""


@dataclass(frozen=True)
class PlannedFile:
    """A file that is no source and goes along, and why.

    Attributes:
        record: the record that will hold it.
        source: the file on this machine; empty in a plan that was read from a package.
        owner: the module or the distribution that it belongs to.
        why: the evidence, in a few words.
        kind: what it is.
    """

    record: str
    source: str
    owner: str
    why: str
    kind: FileKind = FileKind.DATA


@dataclass(frozen=True)
class PlannedDistribution:
    """An installed distribution whose metadata goes along.

    Attributes:
        name: its name as it is installed under.
        version: its version.
        folder: the record folder of its metadata (``"tqdm-4.66.0.dist-info"``).
        modules: its interned modules; without any, packaged code knows only its name, version
            and requirements.
    """

    name: str
    version: str
    folder: str
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Plan:
    """The contents of a package, and every problem with them.

    Attributes:
        decisions: One decision for each module, by module path.
        problems: Everything that stops the package from being written.
        notes: Warnings and remarks.
        graph: The import graph.
        files: The data files and native libraries that the package includes, by record.
        distributions: The distributions whose metadata the package includes, by name.
        self_test_summary: The result of the self-test in one line. Empty if there was none.
        mock_uses: Uses of mocked modules in packaged code.
        has_mock_uses: Whether ``mock_uses`` was computed, which some plans do without.
    """

    decisions: Mapping[str, Decision]
    problems: tuple[Diagnostic, ...] = ()
    notes: tuple[Diagnostic, ...] = ()
    graph: DependencyGraph = field(default_factory=DependencyGraph)
    files: tuple[PlannedFile, ...] = ()
    distributions: tuple[PlannedDistribution, ...] = ()
    self_test_summary: str = ""
    mock_uses: tuple[MockUse, ...] = field(default=(), compare=False)
    has_mock_uses: bool = field(default=False, compare=False)

    def modules(self, action: Action) -> list[str]:
        """Return the modules with this decision, sorted."""
        return sorted(m for m, d in self.decisions.items() if d.action is action)

    def diagnostics(self, min_severity: Severity = Severity.INFO) -> tuple[Diagnostic, ...]:
        """Return the problems, then the notes, of at least this severity."""
        worst = min_severity.rank
        return tuple(d for d in (*self.problems, *self.notes) if d.severity.rank <= worst)

    def warnings(self) -> tuple[Diagnostic, ...]:
        """Return the notes that are warnings."""
        return tuple(note for note in self.notes if note.severity is Severity.WARNING)

    def why(self, module: str) -> tuple[str, ...]:
        """Return the shortest chain of importers that leads to a module."""
        return self.graph.shortest_path(module)

    def __str__(self) -> str:
        lines = [
            f"{action.past}: {len(modules)}" + (f" ({_first(modules)})" if modules else "")
            for action in Action
            if (modules := self.modules(action)) or action is not Action.DENY
        ]
        if self.files:
            lines.append(f"files: {len(self.files)} ({_first([f.record for f in self.files])})")
        if self.self_test_summary:
            lines.append(f"self-test: {self.self_test_summary}")
        lines += [f"{d.severity.value}: {d}" for d in self.diagnostics(Severity.WARNING)]
        if infos := len(self.notes) - len(self.warnings()):
            lines.append(f"{counted(infos, 'more note')} of severity info in plan.notes")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return what notebooks display."""
        return plan_html(self)

    def __repr__(self) -> str:
        numbers = [f"{len(self.modules(action))} {action.past}" for action in Action]
        problems = f", {len(self.problems)} problems" if self.problems else ""
        return f"<Plan: {', '.join(n for n in numbers if not n.startswith('0 '))}{problems}>"


def _first(modules: list[str], limit: int = 4) -> str:
    return ", ".join(modules[:limit]) + (", ..." if len(modules) > limit else "")


class PackagingError(ModpackError):
    """The package cannot be written.

    Args:
        problems: Every problem.
        debug: Whether to show the chain of importers that leads to each.
    """

    def __init__(self, problems: tuple[Diagnostic, ...], debug: bool = False) -> None:
        self.problems = problems
        self.debug = debug
        hint = "" if debug else "Pass debug=True to PackageExporter to show the import chains."
        super().__init__(_packaging_text(problems, debug), hint=hint)


class EmptyMatchError(PackagingError):
    """A rule with ``allow_empty=False`` matched nothing, and there is no other problem."""


def problems_by_cause(
    problems: Iterable[Diagnostic],
) -> Iterator[tuple[DiagnosticCode, list[Diagnostic]]]:
    """Group problems by code, in the order of :class:`PackagingErrorReason`."""
    for reason in PackagingErrorReason:
        group = [problem for problem in problems if problem.code == reason]
        if group:
            yield diagnostic_codes()[reason], group


def has_chain_to_show(problem: Diagnostic, debug: bool) -> bool:
    """Return whether to show a chain. Nobody can judge a possible secret without its chain."""
    is_wanted = debug or problem.code == PackagingErrorReason.POSSIBLE_SECRET
    return is_wanted and len(problem.chain) > 1


def _packaging_text(problems: Sequence[Diagnostic], debug: bool) -> str:
    lines = [""]
    for kind, group in problems_by_cause(problems):
        lines.append(f"* {with_hint(kind.meaning, kind.hint)}")
        for problem in group:
            own_hint = "" if problem.hint == kind.hint else problem.hint
            lines.append(f"    {with_hint(problem.summary, own_hint)}")
            if has_chain_to_show(problem, debug):
                lines.append(f"      imported through {' -> '.join(problem.chain)}")
    return "\n".join(lines) + "\n"


class UseKind(str, Enum):
    """Where, in its importer's code, a name of a mocked module is used."""

    BASE_CLASS = "base-class"
    """Something is derived from it."""
    DECORATOR = "decorator"
    """It decorates a function or a class."""
    CALL = "call"
    """It is called by code that runs when its importer is imported."""
    MODULE_LEVEL = "module-level"
    """Any other use when the importer is imported: a default value, an assignment, a condition."""
    ANNOTATION = "annotation"
    """In an annotation only: evaluated at import time or later, never called."""
    FUNCTION_BODY = "function-body"
    """In the body of a function: used when, and if, that is called."""
    TYPE_CHECK = "type-check"
    """In the body of a function, where it is only asked about: ``isinstance``, ``is None``, the
    type in an ``except`` clause. Stand-ins answer, as what is not there: no."""

    __json_aliases__: ClassVar[Mapping[str, str]] = {
        "value": "module-level",
        "function": "function-body",
        "check": "type-check",
    }
    """Values in packages of early versions."""

    @property
    def is_at_import(self) -> bool:
        """Whether it happens when the importer is imported."""
        return self not in (UseKind.FUNCTION_BODY, UseKind.TYPE_CHECK)


@json_keys({"is_live": "live", "is_called_later": "called_later"})
@dataclass(frozen=True)
class MockUse:
    """One place where packaged code uses a name of a mocked module.

    Attributes:
        module: the mocked module.
        name: what is used, dotted, below that module (``"init"``); empty for the module itself.
            What comes of it is named by its way: ``"init(...).log"`` of what a call gave,
            ``"Callback (base of Progress)"`` for a class that is derived from it.
        importer: the interned module whose code uses it; or a saved object (``<model/net.pkl>``)
            that holds a function which travels by its source, and imports it.
        line: 1-based line of the use in the importer's source; 1 in a saved object.
        kind: how it is used.
        scope: the qualified name of the function or class around it; empty at module level.
        is_live: for uses in functions, whether anything in the package can call that function,
            judged by names: False only if nothing else mentions it.
        via: the interned modules through which the name came, if the importer has it from another
            interned module (``from .tools import log``); in the order from the mock to the use.
        is_called_later: for decorators and base classes, whether what is made with it can be called
            once its module is imported: it is a stand-in, too.
    """

    module: ModulePath
    name: str
    importer: ModulePath
    line: Line
    kind: UseKind
    scope: str = ""
    is_live: bool = True
    via: tuple[ModulePath, ...] = ()
    is_called_later: bool = False

    @property
    def is_reachable(self) -> bool:
        """Whether something will raise NotImplementedError if the package's code gets there."""
        return self.is_called_later or (self.kind is UseKind.FUNCTION_BODY and self.is_live)


class MockEventKind(str, Enum):
    """What a self-test did with a mocked module."""

    LOADED = "loaded"
    """It was imported."""
    NAMED = "named"
    """Names were taken from it, which costs nothing."""
    USED = "used"
    """Something of it was really used, and raised NotImplementedError."""


@dataclass(frozen=True)
class MockEvent:
    """What a self-test did with one mocked module, or with one name of it.

    Attributes:
        module: the mocked module.
        kind: what was done.
        name: what was used, as its importers call it (``wandb.log``); empty for LOADED.
        operation: what was done with it (``was called``); for USED.
        place: ``record:line`` of the packaged code that did it, if known; for USED.
    """

    module: str
    kind: MockEventKind
    name: str = ""
    operation: str = ""
    place: str | None = None


class MockRisk(str, Enum):
    """What becomes of a package because a module is mocked, from the least to the worst."""

    UNUSED = "unused"
    """Nothing of it is used, or only in functions that nothing can call."""
    IMPORT_TIME = "import-time"
    """Used only in ways that stand-ins bear: while modules are imported (base classes,
    decorators, annotations, calls at module level), or asked about and no more."""
    REACHABLE = "reachable"
    """Used in a function that can be called, or it decorates one: it will raise
    NotImplementedError then."""


def risk_of(uses: Iterable[MockUse]) -> MockRisk:
    """The risk of a mocked module, judged by all uses of its names."""
    listed = list(uses)
    if any(use.is_reachable for use in listed):
        return MockRisk.REACHABLE
    is_borne = any(use.kind is not UseKind.FUNCTION_BODY for use in listed)
    return MockRisk.IMPORT_TIME if is_borne else MockRisk.UNUSED


_LIBRARY = re.compile(r"\.(so|pyd|dll|dylib)(\.\d+)*$", re.IGNORECASE)
_ELF = b"\x7fELF"
_MACH_O = (b"\xfe\xed\xfa\xce", b"\xfe\xed\xfa\xcf", b"\xce\xfa\xed\xfe", b"\xcf\xfa\xed\xfe")
_MACH_O_FAT = b"\xca\xfe\xba\xbe"
_PE_STUB, _PE_PLACE, _PE = b"MZ", 0x3C, b"PE\0\0"


def is_machine_code(name: str, start: bytes) -> bool:
    r"""Whether a file is a library or a program, by its name or by how it starts.

    Args:
        name: the file's name.
        start: its first bytes; a few hundred tell.

    >>> is_machine_code("lib/fast.so.1", b""), is_machine_code("words.bin", b"\x7fELF\2\1")
    (True, True)
    >>> is_machine_code("words.txt", b"MZ stands for ...")
    False
    """
    if _LIBRARY.search(name) or start.startswith((_ELF, *_MACH_O, _MACH_O_FAT)):
        return True
    header = int.from_bytes(start[_PE_PLACE : _PE_PLACE + 4], "little")
    return start.startswith(_PE_STUB) and start[header : header + 4] == _PE


_MAX_ROWS = 200
_COLORS = {
    Action.INTERN: "#2e7d32",
    Action.EXTERN: "#0277bd",
    Action.MOCK: "#b26a00",
    Action.DENY: "#c62828",
}


def html_heading(text: str, more: str = "") -> str:
    """A title, and something beside it in gray."""
    beside = f' <span style="color:#888">{_text(more)}</span>' if more else ""
    return f"<div><b>{_text(text)}</b>{beside}</div>"


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts; the rows beyond a few hundred are counted only.

    Args:
        head: the titles of the columns, if there are any.
        rows: a text for each column.

    >>> html_table(["module"], [["a<b"]])
    '<table><tr><th style="text-align:left">module</th></tr><tr><td \
style="text-align:left">a&lt;b</td></tr></table>'
    """
    shown = [_row("td", row) for row in rows[:_MAX_ROWS]]
    left = len(rows) - len(shown)
    more = [_row("td", [f"and {left} more"])] if left > 0 else []
    titles = [_row("th", head)] if head else []
    return f"<table>{''.join([*titles, *shown, *more])}</table>"


def html_list(texts: Iterable[str], color: str = "") -> str:
    """A list of texts; empty if there is none."""
    style = f' style="color:{color}"' if color else ""
    items = "".join(f"<li>{_text(text)}</li>" for text in texts)
    return f"<ul{style}>{items}</ul>" if items else ""


def html_details(summary: str, content: str, color: str = "", *, is_open: bool = False) -> str:
    """A part that unfolds with a click.

    Args:
        summary: what is always shown, as text.
        content: what is unfolded, as HTML.
        color: of the summary.
        is_open: whether it is unfolded at first.
    """
    style = f' style="color:{color}"' if color else ""
    state = " open" if is_open else ""
    return f"<details{state}><summary{style}>{_text(summary)}</summary>{content}</details>"


def plan_html(plan: Plan) -> str:
    """A plan: problems and warnings first, then the modules of each decision."""
    counts = ", ".join(
        f"{len(modules)} {action.past}" for action in Action if (modules := plan.modules(action))
    )
    return "".join(
        [
            html_heading("modpack plan", counts or "no modules"),
            html_list(map(str, plan.problems), _COLORS[Action.DENY]),
            html_list(map(str, plan.warnings()), _COLORS[Action.MOCK]),
            html_list([f"self-test: {summary}"] if (summary := plan.self_test_summary) else []),
            *(_decided(plan, action) for action in Action),
        ]
    )


def _decided(plan: Plan, action: Action) -> str:
    modules = plan.modules(action)
    if not modules:
        return ""
    rows = [(module, plan.decisions[module].why) for module in modules]
    table = html_table(["module", "rule"], rows)
    return html_details(f"{action.past}: {len(modules)}", table, _COLORS[action])


def _row(cell: str, texts: Iterable[str]) -> str:
    cells = "".join(f'<{cell} style="text-align:left">{_text(text)}</{cell}>' for text in texts)
    return f"<tr>{cells}</tr>"


def _text(text: str) -> str:
    """Text that is no markup, whatever is in it."""
    return escape(text, quote=True)
