"""The trial of a package: rounds in clean interpreters until it passes, or the reason is known."""

from __future__ import annotations

import logging
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from modpack.archive import layout
from modpack.archive.writer import ArchiveWriter
from modpack.core.graph import Location
from modpack.core.names import is_everywhere, is_within
from modpack.core.names import normalised_distribution as normalised
from modpack.core.plan import MockTouch, NoteKind, Plan, TouchKind
from modpack.core.progress import phase
from modpack.core.rules import Action
from modpack.core.selftest import OutsideImport, TrialRecord, TriedCase
from modpack.core.text import counted
from modpack.discovery.distributions import Distribution, DistributionIndex
from modpack.errors import TrialError
from modpack.exporting.builder import PackageBuilder
from modpack.exporting.planner import Planner
from modpack.exporting.presets import always_installed
from modpack.selftest.process import (
    Difference,
    Hidden,
    Job,
    Verdict,
    clean_path,
    hidden_from,
    perform,
)
from modpack.selftest.reference import (
    Case,
    declared_operators,
    schemas_of,
    tables_naming,
    write_record,
)
from modpack.selftest.requests import MissingResourceResolver

_MOST_DIFFERENCES = 5
_MOST_REFUSED = 5


class Explanation(NamedTuple):
    """Why a trial did not pass.

    Attributes:
        reason: what is wrong, in one sentence.
        details: lines that show it.
        log: the end of what was written to stdout and stderr.
    """

    reason: str
    details: tuple[str, ...] = ()
    log: str = ""

    @property
    def text(self) -> str:
        """All but the log."""
        return "\n".join((self.reason, *self.details))

    def __str__(self) -> str:
        return self.reason


def explained(
    verdict: Verdict,
    differences: Sequence[Difference],
    suspects: Sequence[str] = (),
    process: Verdict | None = None,
    process_differences: Sequence[Difference] = (),
) -> Explanation:
    """Put the reason into words.

    Args:
        verdict: what came of the private namespace.
        differences: the differences in it that count.
        suspects: what is known to differ between the live process and the package.
        process: what came of the process namespace, if that was tried.
        process_differences: likewise.
    """
    reason, details = _reason(verdict, differences), list(_details(verdict, differences))
    details += [f"perhaps because {each}" for each in suspects]
    if process is not None:
        other = _reason(process, process_differences)
        also = "" if other == reason else f": {other}"
        details.append(f"it fails with namespace='process', too{also}")
    return Explanation(reason, tuple(details), verdict.log)


def _reason(verdict: Verdict, differences: Sequence[Difference]) -> str:
    if verdict.failure is not None:
        return verdict.failure.text
    return f"its output differs from the live model's in {counted(len(differences), 'place')}"


def _details(verdict: Verdict, differences: Sequence[Difference]) -> Iterator[str]:
    if verdict.failure is not None:
        for line in verdict.failure.trace:
            yield line if line.startswith("because of ") else f"at {line}"
    yield from map(str, differences[:_MOST_DIFFERENCES])
    if len(differences) > _MOST_DIFFERENCES:
        yield f"and {len(differences) - _MOST_DIFFERENCES} more"
    yield from map(str, verdict.unfilled)
    if verdict.failure is not None:
        yield from _refusals(verdict.refused)


def _refusals(refused: Sequence[tuple[str, str]]) -> Iterator[str]:
    """What was looked for outside the package although the package holds it."""
    for name, by in refused[:_MOST_REFUSED]:
        if "/" in name or "\\" in name:
            yield f"{by} looked for {name}, a file of this machine beside packaged code"
        else:
            yield (
                f"{by} looked for {name} outside the package, which holds it: where the package is "
                "loaded it need not be installed"
            )


def imported_outside(
    imported: Iterable[tuple[str, str | None]],
    plan: Plan,
    hidden: Sequence[str],
    locate: Callable[[str], Location | None],
    ownership: DistributionIndex,
) -> tuple[OutsideImport, ...]:
    """The distributions that the trial's interpreter imported, and that nothing there names.

    An extern module may import another library, as ``torch.utils.tensorboard`` does. Its imports
    are not the package's. But where that library is missing, the package does not load. Left out
    is what is installed in any case: what comes with torch and modpack, what the plan names, and
    what any of these or of those that are returned require.

    Args:
        imported: the modules, and by which module each was imported first, if that is known.
        plan: what the package holds and needs.
        hidden: roots of modules that the package holds.
        locate: finds a module here.
        ownership: knows what is installed here.
    """
    found: dict[str, tuple[Distribution, str, str | None]] = {}
    for module, by in imported:
        if not is_everywhere(module) and not any(is_within(module, root) for root in hidden):
            owner = ownership.distribution_of(module, locate(module))
            if owner is not None:
                found.setdefault(normalised(owner.name), (owner, module, by))
    named = {normalised(each.name): each for each in _named_by(plan, ownership)}
    known = {*always_installed(ownership), *named}
    known = known.union(*map(ownership.required_closure, named.values()))
    for owner, _, _ in found.values():  # two may require each other: the first stays
        if normalised(owner.name) not in known:
            known |= ownership.required_closure(owner) - {normalised(owner.name)}
    return tuple(
        OutsideImport(owner.name, owner.version, module, by)
        for name, (owner, module, by) in sorted(found.items())
        if name not in known
    )


def _named_by(plan: Plan, ownership: DistributionIndex) -> Iterator[Distribution]:
    for decision in plan.decisions.values():
        if decision.action is Action.EXTERN and not is_everywhere(decision.module):
            owner = ownership.distribution_of(decision.module, decision.location)
            if owner is not None:
                yield owner


_log = logging.getLogger("modpack")

_LIVE = (NoteKind.LIVE_CHANGED, NoteKind.LIVE_STATE, NoteKind.EXTERN_PATCHED)
"""What is known to differ between the live process and the package."""
_STRICT, _USES, _PROBES = 0, 1, 2
"""What the child asks for; see :class:`modpack.selftest.child_requests.Eagerness`."""
_MOST_ROUNDS = 24
_SHORTEST_LIMIT_SECONDS = 600.0
_PATIENCE = 30.0
"""Times the live run: how long a run may take before it counts as hanging."""
_OPERATOR = re.compile(r"\b[A-Za-z_]\w*::[A-Za-z_]\w*")
_ABSENT_OPERATOR = re.compile(r"'_OpNamespace' '(\w+)' object has no attribute '(\w+)'")
"""What torch says of ``torch.ops.mylib.add`` where nobody declared it."""


class Trial:
    """One package being tried.

    Args:
        source: the package as the user named it, for messages.
        plan: what it will hold.
        cases: what is run, with the recorded outputs.
        bench: makes the package.
        planner: decides what is added.
        ownership: knows what is installed here.
        scripts: files of scripts of which definitions are taken along.

    Attributes:
        plan: what the package holds by now.
        explanation: why it did not pass, if it did not.
    """

    def __init__(
        self,
        source: str,
        plan: Plan,
        cases: Sequence[Case],
        bench: PackageBuilder,
        planner: Planner,
        ownership: DistributionIndex,
        scripts: Sequence[str] = (),
    ) -> None:
        self.plan = plan
        self.explanation: Explanation | None = None
        self._source = source
        self._cases = {case.records.number: case for case in cases}
        self._bench = bench
        self._ownership = ownership
        self._scripts = tuple(scripts)
        self._resolver = MissingResourceResolver(planner)
        models = {id(case.model): case.model for case in cases}
        self._tables = sorted({t for model in models.values() for t in tables_naming(model)})
        self._locate = planner.walker.locate
        self._operators: list[str] = []
        self._again: dict[int, list[Difference]] = {}
        self._planned = 0
        self._written: str | None = None
        self._rounds = 0
        self._hidden = Hidden()
        self._path: list[str] = []
        self._tree = ""
        limits = [case.seconds * _PATIENCE for case in cases]
        self._limit = _SHORTEST_LIMIT_SECONDS + sum(limits)

    def outcome(self) -> TrialRecord:
        """Try the package; afterwards it is written as it was tried last."""
        prefix = "modpack-trial-"
        with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as tree:
            self._tree = tree
            return self._outcome()

    def _outcome(self) -> TrialRecord:
        started = time.monotonic()
        private = self._settle("private")
        if self._passes(private):
            return self._record(private, "private", time.monotonic() - started)
        process = self._settle("process", private) if not _hung(private) else private
        why = explained(private, self._real(private))
        if self._passes(process):
            seconds = time.monotonic() - started
            return self._record(process, "process", seconds, why_process=str(why))
        self._write("private")
        suspects = [note.text for note in self.plan.notes if note.kind in _LIVE]
        also = (process, self._real(process)) if process is not private else ()
        self.explanation = explained(private, self._real(private), suspects, *also)
        seconds = time.monotonic() - started
        return self._record(private, "private", seconds, failure=self.explanation.text)

    def _settle(self, namespace: str, before: Verdict | None = None) -> Verdict:
        """The last verdict on a package that must do with what it holds.

        Args:
            namespace: in which namespace.
            before: the verdict on another namespace: the same again needs no more looking into.
        """
        verdict = self._round(namespace, _STRICT)
        if before is not None and verdict.failure == before.failure is not None:
            return verdict
        while not self._passes(verdict) and verdict.is_complete and self._rounds < _MOST_ROUNDS:
            if not (self._declare_operators(verdict) or self._find_missing(namespace)):
                break
            verdict = self._round(namespace, _STRICT)
        return verdict

    def _find_missing(self, namespace: str) -> bool:
        """Let the child ask for what it misses; tells whether anything was added."""
        before = len(self._resolver.added)
        for eagerness in (_USES, _PROBES):
            verdict = self._round(namespace, eagerness)
            if len(self._resolver.added) > before:
                return True
            if not verdict.has_skipped and verdict.is_complete:
                return False
        return False

    def _declare_operators(self, verdict: Verdict) -> bool:
        """Declare those operators of this process that a failure speaks of."""
        if verdict.failure is None:
            return False
        told = "\n".join((verdict.failure.text, *verdict.failure.trace))
        missing = declared_operators().difference(verdict.operators)
        named = {f"{space}::{name}" for space, name in _ABSENT_OPERATOR.findall(told)}
        wanted = sorted(missing.intersection(named.union(_OPERATOR.findall(told))))
        schemas = [each for each in schemas_of(wanted) if each not in self._operators]
        self._operators += schemas
        return bool(schemas)

    def _round(self, namespace: str, eagerness: int) -> Verdict:
        self._write(namespace)
        self._rounds += 1
        with phase(f"trial run {self._rounds}"), self._bench.previewed() as package:
            job = Job(
                package,
                namespace,
                tuple(map(self._tried, self._cases.values())),
                self._hidden,
                tuple(self._path),
                self._tree,
                eagerness,
                tuple(self._operators),
                tuple(self._tables),
            )
            verdict = perform(job, self._resolver.answer, self._limit)
            verdict = verdict.told_with(package, self._source)
        passes = self._passes(verdict)
        _log.info(
            "trial run %d of %s, namespace %s: %s after %.1f seconds",
            self._rounds,
            self._source,
            namespace,
            "passed" if passes else explained(verdict, self._real(verdict)).reason,
            verdict.seconds,
        )
        return verdict

    def _write(self, namespace: str) -> None:
        has_grown = len(self._resolver.added) > self._planned
        if has_grown:
            self.plan = self._bench.plan()
            self._planned = len(self._resolver.added)
        if has_grown or self._written is None:
            self._hidden = hidden_from(self.plan, self._ownership, self._scripts)
            self._path = clean_path(self.plan, self._hidden)
        if has_grown or self._written != namespace:
            self._bench.write(self.plan, namespace)
            self._written = namespace

    def _passes(self, verdict: Verdict) -> bool:
        return verdict.failure is None and not self._real(verdict)

    def _real(self, verdict: Verdict) -> list[Difference]:
        """The differences that the live model's own randomness does not explain."""
        real: list[Difference] = []
        for number in dict.fromkeys(number for number, _ in verdict.differences):
            unstable = self._live_differences(number)
            paths = {each.path for each in unstable if each.is_structural}
            real += [
                difference
                for of, difference in verdict.differences
                if of == number
                and (not unstable or (difference.is_structural and difference.path not in paths))
            ]
        return real

    def _live_differences(self, number: int) -> list[Difference]:
        """Where the live model differs from itself; it is run again when there is a reason."""
        if number not in self._again:
            self._again[number] = self._cases[number].differs_from_itself()
        return self._again[number]

    def _record(
        self,
        verdict: Verdict,
        namespace: str,
        seconds: float,
        why_process: str | None = None,
        failure: str | None = None,
    ) -> TrialRecord:
        return TrialRecord(
            failure is None,
            namespace,
            tuple(self._tried(case) for case in self._cases.values()),
            self._rounds,
            seconds,
            tuple(self._resolver.added.values()),
            why_process,
            failure,
            self._hidden.modules,
            self._hidden.distributions,
            tuple(self._operators),
            platform.python_version(),
            str(torch.__version__),
            verdict.touches,
            imported=imported_outside(
                verdict.imported, self.plan, self._hidden.modules, self._locate, self._ownership
            ),
            unfilled=verdict.unfilled,
        )

    def _tried(self, case: Case) -> TriedCase:
        again = self._again.get(case.records.number, [])
        return TriedCase(
            case.resource,
            case.records.number,
            case.restore_global,
            not again,
            tuple(each.path for each in again if each.is_structural),
        )


def _hung(verdict: Verdict) -> bool:
    return verdict.failure is not None and verdict.failure.is_timeout


_MOST_PLACES = 4
_CONSTRUCT = "construct one object of the class after loading"


class Tried(NamedTuple):
    """A package that was tried and is written.

    Attributes:
        plan: what it holds.
        warnings: what its user should hear.
    """

    plan: Plan
    warnings: Sequence[str]


def settle_trial(trial: Trial, writer: ArchiveWriter, write_anyway: bool) -> Tried:
    """Write a package as its trial shows that it must be, with a record of the trial.

    Args:
        trial: the package and its examples.
        writer: where the record goes.
        write_anyway: whether a package that fails is written as well, with a warning.

    Raises:
        TrialError: it failed.
    """
    record = trial.outcome()
    why = trial.explanation
    failure: TrialError | None = None
    if why is not None:
        failure = TrialError(writer.source, why.reason, why.details, why.log, write_anyway)
        if not write_anyway:
            raise failure
    write_record(writer, layout.TRIAL, record)
    runs = counted(record.rounds, "run")
    outcome = f"{record.outcome}, namespace {record.namespace}, {runs}"
    warnings = tuple(_warnings(writer.source, failure, record))
    return Tried(replace(trial.plan, trial=outcome), warnings)


def _warnings(source: str, failure: TrialError | None, record: TrialRecord) -> Iterator[str]:
    if failure is not None:
        yield str(failure)
    else:
        yield from _swallowed(record.touches)
        for table in record.unfilled:
            yield f"the trial passed, but {table}. Remedy: {_CONSTRUCT}"
    if record.operators:
        yield f"whoever loads {source} must first declare {', '.join(record.operators)}"


def _swallowed(touches: Sequence[MockTouch]) -> Iterator[str]:
    """What was used of mocked modules although the trial passed: the package hides it."""
    used: dict[str, list[MockTouch]] = {}
    for touch in touches:
        if touch.kind is TouchKind.USED:
            used.setdefault(touch.module, []).append(touch)
    for module, listed in used.items():
        places = dict.fromkeys(
            f"{t.name} {t.operation}" + (f" at {t.place}" if t.place else "") for t in listed
        )
        shown = ", ".join(list(places)[:_MOST_PLACES])
        more = f" and {len(places) - _MOST_PLACES} more" if len(places) > _MOST_PLACES else ""
        yield (
            f"the trial passed, but the package used the mocked module {module!r} and caught what "
            f"that raises: {shown}{more}. Remedy: intern or extern {module!r}, or remove the use"
        )
