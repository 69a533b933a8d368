"""The plan of a package: one decision for each module, all problems, and all notes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from modpack.core.codec import Line, ModulePath
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
    """The action for one module, and the rule behind it.

    Attributes:
        module: The module path.
        action: The action.
        rule: The rule that matched.
        location: The location of the module's code, if found.
        overridden_by: The match hook that changed the rule's action, if any.
        hooks: The match hooks that were called for the module, in order.
    """

    module: str
    action: Action
    rule: Rule
    location: Location | None = None
    overridden_by: str | None = None
    hooks: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """The rule, and the match hook that overrode it, as text."""
        if self.overridden_by is None:
            return str(self.rule)
        return f"{self.rule}, overridden by hook {self.overridden_by}"


class FileKind(str, Enum):
    """The kind of a file that a package includes with its code."""

    DATA = "data"
    """A file that the code reads."""
    METADATA = "metadata"
    """Metadata of a distribution: name, version, license, entry points."""
    NATIVE = "native"
    """A native extension, or a native library that one needs."""


class PlannedFile(NamedTuple):
    """A file that a package includes with its code, other than Python source.

    Attributes:
        record: The record of the file.
        source: The path on this machine. Empty in a plan that was read from a package.
        owner: The module or distribution that the file belongs to.
        why: The reason for including it, in a few words.
        kind: The kind of file.
    """

    record: str
    source: str
    owner: str
    why: str
    kind: FileKind = FileKind.DATA


class PlannedDistribution(NamedTuple):
    """An installed distribution whose metadata a package includes.

    Attributes:
        name: The name under which it is installed.
        version: Its version.
        folder: The record folder of its metadata, such as ``"tqdm-4.66.0.dist-info"``.
        modules: Its interned modules. Without any, the package includes only its name, version,
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
    """

    decisions: Mapping[str, Decision]
    problems: tuple[Diagnostic, ...] = ()
    notes: tuple[Diagnostic, ...] = ()
    graph: DependencyGraph = field(default_factory=DependencyGraph)
    files: tuple[PlannedFile, ...] = ()
    distributions: tuple[PlannedDistribution, ...] = ()
    self_test_summary: str = ""
    mock_uses: tuple[MockUse, ...] = field(default=(), compare=False)

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
        """Return what notebooks display, which show repr() otherwise: the plan as text."""
        from html import escape  # takes 2 ms: a third of it for its tables of entities

        return f"<pre>{escape(str(self))}</pre>"

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

    __module__ = "modpack"  # shown in tracebacks

    def __init__(self, problems: tuple[Diagnostic, ...], debug: bool = False) -> None:
        self.problems = problems
        self.debug = debug
        hint = "" if debug else "Pass debug=True to show the import chains."
        super().__init__(_packaging_text(problems, debug), hint=hint)


class EmptyMatchError(PackagingError):
    """A rule with ``allow_empty=False`` matched nothing, and there is no other problem."""

    __module__ = "modpack"


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
            # The heading of the group shows the hint of its code.
            own_hint = "" if problem.hint == kind.hint else problem.hint
            lines.append(f"    {with_hint(problem.summary, own_hint)}")
            if has_chain_to_show(problem, debug):
                lines.append(f"      imported through {' -> '.join(problem.chain)}")
    return "\n".join(lines) + "\n"


class UseKind(str, Enum):
    """How packaged code uses a name of a mocked module."""

    BASE_CLASS = "base-class"
    """A base of a class."""
    DECORATOR = "decorator"
    """A decorator of a function or class."""
    MODULE_LEVEL = "module-level"
    """Another use at import time: a call, a default value, an assignment, a condition."""
    ANNOTATION = "annotation"
    """An annotation, which is never called."""
    FUNCTION_BODY = "function-body"
    """A use in a function body, when the function is called."""
    TYPE_CHECK = "type-check"
    """A check in a function body: ``isinstance``, ``is None``, or the type in an ``except`` clause.
    A mock answers as an absent module would: no."""

    @property
    def is_at_import(self) -> bool:
        """Whether the use happens at import time."""
        return self not in (UseKind.FUNCTION_BODY, UseKind.TYPE_CHECK)


class MockUse(NamedTuple):
    """One use of a name of a mocked module in packaged code.

    Attributes:
        module: The mocked module.
        name: The dotted name below that module, such as ``"init"``. Empty for the module itself.
        importer: The interned module whose code uses the name, or a saved object
            (``<model/net.pkl>``) that contains the source of a function that imports it.
        line: 1-based line of the use in the importer's source. 1 in a saved object.
        kind: The kind of use.
        scope: The qualified name of the enclosing function or class. Empty at module level.
        via: The interned modules that pass the name on (``from .tools import log``), in order from
            the use to the mock.
    """

    module: ModulePath
    name: str
    importer: ModulePath
    line: Line
    kind: UseKind
    scope: str = ""
    via: tuple[ModulePath, ...] = ()


_LIBRARY = re.compile(r"\.(so|pyd|dll|dylib)(\.\d+)*$", re.IGNORECASE)
_ELF = b"\x7fELF"
_MACH_O = (b"\xfe\xed\xfa\xce", b"\xfe\xed\xfa\xcf", b"\xce\xfa\xed\xfe", b"\xcf\xfa\xed\xfe")
_MACH_O_FAT = b"\xca\xfe\xba\xbe"
_PE_STUB, _PE_OFFSET, _PE = b"MZ", 0x3C, b"PE\0\0"


def is_machine_code(name: str, start: bytes) -> bool:
    r"""Return whether a file is a native library or program, by its name or its first bytes.

    Args:
        name: The file name.
        start: The first bytes. A few hundred suffice.

    >>> is_machine_code("lib/fast.so.1", b""), is_machine_code("words.bin", b"\x7fELF\2\1")
    (True, True)
    >>> is_machine_code("words.txt", b"MZ stands for ...")
    False
    """
    if _LIBRARY.search(name) or start.startswith((_ELF, *_MACH_O, _MACH_O_FAT)):
        return True
    # Two letters may be the start of a text, so that the PE signature decides.
    header = int.from_bytes(start[_PE_OFFSET : _PE_OFFSET + 4], "little")
    return start.startswith(_PE_STUB) and start[header : header + 4] == _PE
