"""The plan: one decision a module, and everything that is wrong or noteworthy, at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from modpack.core.actions import Action
from modpack.core.graph import DependencyGraph
from modpack.core.location import Location
from modpack.core.rules import Rule
from modpack.errors import ModpackError

if TYPE_CHECKING:
    from modpack.core.usage import NameUse

__all__ = [
    "Decision",
    "EmptyMatchError",
    "FileKind",
    "Note",
    "NoteKind",
    "PackagingError",
    "PackagingErrorReason",
    "Plan",
    "PlannedDistribution",
    "PlannedFile",
    "Problem",
    "notes_to_show",
]


class PackagingErrorReason(Enum):
    """Why a module, or a resource, cannot go into the package as it is."""

    IS_EXTENSION_MODULE = (
        "It is compiled code, which is interned with intern_native=True (--intern-native) only. "
        "Pass that, or extern or mock it."
    )
    NO_DUNDER_FILE = "It has no source file that could be interned. Extern it, or mock it."
    SOURCE_FILE_NOT_FOUND = "It was not found where it is exported. Install it, or mock it."
    IMPORT_LEADS_NOWHERE = (
        "It imports what does not exist, and fails wherever that import runs. Correct it, or catch "
        "ImportError."
    )
    SOURCE_NOT_PARSABLE = (
        "Its source is no Python that this interpreter can read. Extern or mock it."
    )
    DEFINED_IN_SCRIPT = (
        "It is defined in the script that runs, and cannot be taken from there. "
        "Move it into a module."
    )
    DEPENDENCY_RESOLUTION_FAILED = "Its dependencies could not be resolved."
    NO_ACTION = "No rule decides it. Intern it, extern it, or mock it."
    DENIED = "It is needed, but a rule denies it."
    MOCKED_BUT_STILL_USED = (
        "It is mocked, but a saved object needs the real one. Intern or extern it."
    )
    VETOED = "A hook refused it."
    DUPLICATE_RECORD = "Two things would be stored under the same name."
    SECRET = (
        "It holds what looks like a secret, and whoever has the package could read it. Take it "
        "out, or allow it."
    )
    EMPTY_MATCH = "The rule says allow_empty=False, but it matched no module."

    @property
    def asks_for_chains(self) -> bool:
        """Whether nobody can judge it without knowing why its subject is in the package."""
        return self is PackagingErrorReason.SECRET

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}>"


@dataclass(frozen=True)
class Problem:
    """Something that stops the package from being written.

    Attributes:
        subject: the module path, resource, or rule it is about.
        reason: what is wrong.
        context: the details, in one line; empty if the reason says it all.
        place: ``file:line`` where it shows, if there is such a place.
        chain: the shortest chain of importers that leads to it.
    """

    subject: str
    reason: PackagingErrorReason
    context: str = ""
    place: str | None = None
    chain: tuple[str, ...] = ()


class NoteKind(str, Enum):
    """What a note is about."""

    DEAD_RULE = "dead-rule"
    EXTERN_NEEDS_INTERNED = "extern-needs-interned"
    DYNAMIC_IMPORT = "dynamic-import"
    DYNAMIC_LIBRARY = "dynamic-library"
    STAR_IMPORT_OF_MOCK = "star-import-of-mock"
    UNUSED_RULE = "unused-rule"
    ABSENT = "absent"
    FILES_LEFT_OUT = "files-left-out"
    FILES_UNKNOWN = "files-unknown"
    SOURCE_EDITED = "source-edited"
    LIVE_CHANGED = "live-changed"
    LIVE_STATE = "live-state"
    EXTERN_PATCHED = "extern-patched"
    SOURCE_UNREADABLE = "source-unreadable"
    PICKLE_UNREADABLE = "pickle-unreadable"
    STORAGE_MOSTLY_UNUSED = "storage-mostly-unused"
    HEAVY_DISTRIBUTION = "heavy-distribution"
    NESTED_PICKLE = "nested-pickle"
    REGISTERED_OUTSIDE = "registered-outside"

    @property
    def is_warning(self) -> bool:
        """Whether the user should hear of it without asking."""
        return self not in _QUIET


_MOST_QUIET = 4
_QUIET = frozenset(
    {NoteKind.ABSENT, NoteKind.DYNAMIC_LIBRARY, NoteKind.FILES_UNKNOWN, NoteKind.LIVE_STATE}
)


@dataclass(frozen=True)
class Note:
    """Something that does not stop the package, but that its user should know.

    Attributes:
        kind: what it is about.
        subject: the module or rule it is about.
        text: what to know and what to do, in one or two sentences.
        place: ``file:line`` where it shows, if there is such a place.
    """

    kind: NoteKind
    subject: str
    text: str
    place: str | None = None

    def __str__(self) -> str:
        return f"{self.place}: {self.text}" if self.place else self.text


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
    """What is known of a distribution: its name, version, licence, entry points."""
    COMPILED = "compiled"
    """An extension module, or a library that one needs."""


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
    """What a package will hold, and everything that is wrong with it.

    Attributes:
        decisions: one decision for each module, by module path.
        problems: all reasons why it cannot be written; empty if it can.
        notes: hazards and remarks.
        graph: who imports whom.
        files: the files that go along with the code, by record.
        distributions: the distributions whose metadata goes along, by name.
        trial: what came of the trial run, in one line; empty if there was none.
        uses: what interned code does with the names of mocked modules.
        tells_uses: whether that was looked for; a plan that is not written yet may not tell.
    """

    decisions: Mapping[str, Decision]
    problems: tuple[Problem, ...] = ()
    notes: tuple[Note, ...] = ()
    graph: DependencyGraph = field(default_factory=DependencyGraph)
    files: tuple[PlannedFile, ...] = ()
    distributions: tuple[PlannedDistribution, ...] = ()
    trial: str = ""
    uses: tuple[NameUse, ...] = field(default=(), compare=False)
    tells_uses: bool = field(default=False, compare=False)

    def modules(self, action: Action) -> list[str]:
        """The modules with this decision, sorted."""
        return sorted(m for m, d in self.decisions.items() if d.action is action)

    def warnings(self) -> tuple[Note, ...]:
        """The notes that a user should hear of without asking."""
        return tuple(note for note in self.notes if note.kind.is_warning)

    def why(self, module: str) -> tuple[str, ...]:
        """The shortest chain of importers that leads to a module."""
        return self.graph.shortest_path(module)

    def __str__(self) -> str:
        lines = [
            f"{action.past}: {len(modules)}" + (f" ({_first(modules)})" if modules else "")
            for action in Action
            if (modules := self.modules(action)) or action is not Action.DENY
        ]
        if self.files:
            lines.append(f"files: {len(self.files)} ({_first([f.record for f in self.files])})")
        lines += [f"problem: {p.subject}: {p.reason.value}" for p in self.problems]
        if self.trial:
            lines.append(f"trial: {self.trial}")
        lines += [f"note: {note}" for note in self.shown_notes()]
        if left := len(self.notes) - len(self.shown_notes()):
            lines.append(f"{left} more notes, about modules that are not needed here: plan.notes")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """What notebooks show."""
        from modpack.core.notebook import plan_html

        return plan_html(self)

    def __repr__(self) -> str:
        numbers = [f"{len(self.modules(action))} {action.past}" for action in Action]
        problems = f", {len(self.problems)} problems" if self.problems else ""
        return f"<Plan: {', '.join(n for n in numbers if not n.startswith('0 '))}{problems}>"

    def shown_notes(self) -> tuple[Note, ...]:
        """The notes that a report shows one by one; see :func:`notes_to_show`."""
        return notes_to_show(self.notes)


def notes_to_show(notes: Sequence[Note]) -> tuple[Note, ...]:
    """The notes to show one by one: of the quiet ones only if there are few.

    Libraries ask for dozens of others that nobody has; the list would hide everything else.
    """
    quiet = [note for note in notes if not note.kind.is_warning]
    return tuple(note for note in notes if note.kind.is_warning or len(quiet) <= _MOST_QUIET)


def _first(modules: list[str], most: int = 4) -> str:
    return ", ".join(modules[:most]) + (", ..." if len(modules) > most else "")


class PackagingError(ModpackError):
    """The package cannot be written; tells every reason at once.

    Args:
        problems: all of them.
        debug: whether to show the chain of importers that leads to each.
    """

    def __init__(self, problems: tuple[Problem, ...], debug: bool = False) -> None:
        self.problems = problems
        self.debug = debug
        super().__init__(_packaging_text(problems, debug))


class EmptyMatchError(PackagingError):
    """A rule with ``allow_empty=False`` matched nothing, and nothing else is wrong."""


def _packaging_text(problems: tuple[Problem, ...], debug: bool) -> str:
    lines = [""]
    for reason in PackagingErrorReason:
        concerned = [problem for problem in problems if problem.reason is reason]
        if concerned:
            lines.append(f"* {reason.value}")
        by_subject: dict[str, list[Problem]] = {}
        for problem in concerned:
            by_subject.setdefault(problem.subject, []).append(problem)
        for of_one in by_subject.values():
            lines.extend(f"    {line}" for line in _problem_lines(of_one, debug))
    if not debug:
        lines += ["", "Set debug=True on the PackageExporter to see who imports each of them."]
    return "\n".join(lines) + "\n"


def _problem_lines(problems: Sequence[Problem], debug: bool) -> Iterator[str]:
    """The lines of all problems of one kind with one module."""
    yield problems[0].subject
    for problem in problems:
        place = f"{problem.place}:" if problem.place else ""
        context = " ".join(filter(None, (place, problem.context)))
        if context:
            yield f"  Context: {context}"
    is_shown = debug or problems[0].reason.asks_for_chains
    if is_shown and len(problems[0].chain) > 1:
        yield f"  Reached through: {' -> '.join(problems[0].chain)}"
