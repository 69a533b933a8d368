"""Runs the self-test of a package in clean interpreters until it passes or fails for good."""

from __future__ import annotations

import logging
import platform
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from modpack.archive import layout
from modpack.archive.writer import ArchiveWriter
from modpack.core.names import is_everywhere, is_within
from modpack.core.names import normalized_distribution as normalized
from modpack.core.plan import MockEvent, MockEventKind, NoteKind, Plan
from modpack.core.process import phase
from modpack.core.selftest import SelfTestCase, SelfTestRecord, UndeclaredImport
from modpack.core.text import counted, listed
from modpack.discovery.distributions import Distribution, DistributionIndex
from modpack.errors import SelfTestError
from modpack.exporting.builder import PackageBuilder
from modpack.exporting.planner import Planner
from modpack.exporting.presets import always_installed
from modpack.selftest.process import (
    Difference,
    HiddenModules,
    Job,
    ProbeLevel,
    RunResult,
    clean_path,
    extern_owners,
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

_log = logging.getLogger("modpack")

_LIVE = (NoteKind.LIVE_CHANGED, NoteKind.LIVE_STATE, NoteKind.EXTERN_PATCHED)
"""What is known to differ between the live process and the package."""
_MAX_ROUNDS = 24
_SHORTEST_LIMIT_SECONDS = 600.0
_PATIENCE = 30.0
"""Times the live run: how long a run may take before it counts as hanging."""
_OPERATOR = re.compile(r"\b[A-Za-z_]\w*::[A-Za-z_]\w*")
_ABSENT_OPERATOR = re.compile(r"'_OpNamespace' '(\w+)' object has no attribute '(\w+)'")
"""What torch says of ``torch.ops.mylib.add`` where nobody declared it."""
_MAX_DIFFERENCES = 5
_MAX_REFUSED = 5
_MAX_PLACES = 4


class Explanation(NamedTuple):
    """Why a self-test did not pass.

    Attributes:
        reason: what is wrong, in one sentence.
        details: lines that show it.
        log: the end of what was written to stdout and stderr.
    """

    reason: str
    details: tuple[str, ...] = ()
    log: str = ""


def explained(verdict: RunResult, differences: Sequence[Difference]) -> Explanation:
    """Put into words why a self-test did not pass.

    Args:
        verdict: what came of it.
        differences: the differences in it that count.
    """
    shown = differences[:_MAX_DIFFERENCES]
    more = [f"and {len(differences) - len(shown)} more"] if len(differences) > len(shown) else []
    details = [*map(str, shown), *more, *map(str, verdict.unfilled)]
    if verdict.failure is None:
        places = counted(len(differences), "place")
        reason = f"its output differs from the live model's in {places}"
        return Explanation(reason, tuple(details), verdict.log)
    trace = verdict.failure.trace
    trace = tuple(line if line.startswith("because of ") else f"at {line}" for line in trace)
    # What was looked for outside the package although the package holds it.
    for name, by in verdict.refused[:_MAX_REFUSED]:
        details.append(
            f"{by} looked for {name}, a file of this machine beside packaged code"
            if "/" in name or "\\" in name
            else f"{by} looked for {name} outside the package, which holds it: where the package "
            "is loaded it need not be installed"
        )
    return Explanation(verdict.failure.text, (*trace, *details), verdict.log)


class SelfTest:
    """One package being tried.

    Args:
        writer: writes the package, and gets the record of the self-test.
        plan: what it will hold.
        cases: what is run, with the recorded outputs.
        bench: makes the package.
        planner: decides what is added.
        ownership: knows what is installed here.
        scripts: files of scripts of which definitions are taken along.
    """

    def __init__(
        self,
        writer: ArchiveWriter,
        plan: Plan,
        cases: Sequence[Case],
        bench: PackageBuilder,
        planner: Planner,
        ownership: DistributionIndex,
        scripts: Sequence[str] = (),
    ) -> None:
        self._plan = plan
        self._writer = writer
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
        self._hidden = HiddenModules()
        self._path: list[str] = []
        self._tree = ""
        self._started = time.monotonic()
        limits = [case.seconds * _PATIENCE for case in cases]
        self._limit = _SHORTEST_LIMIT_SECONDS + sum(limits)

    def settle(self, write_anyway: bool) -> tuple[Plan, tuple[str, ...]]:
        """Write the package as its self-test shows that it must be, with a record of the self-test.

        Args:
            write_anyway: whether a package that fails is written as well, with a warning.

        Returns:
            What the package holds, and warnings for its user.

        Raises:
            SelfTestError: it failed.
        """
        prefix, source = "modpack-trial-", self._writer.path
        with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as self._tree:
            record, why = self._outcome()
        failure: SelfTestError | None = None
        if why is not None:
            failure = SelfTestError(source, why.reason, why.details, why.log, write_anyway)
            if not write_anyway:
                raise failure
        write_record(self._writer, layout.SELF_TEST, record)
        runs = counted(record.rounds, "run")
        outcome = f"{record.outcome}, namespace {record.namespace}, {runs}"
        warnings = tuple(_warnings(source, failure, record))
        return replace(self._plan, self_test=outcome), warnings

    def _outcome(self) -> tuple[SelfTestRecord, Explanation | None]:
        """The record, and why it did not pass; the package is then written as it was tried last."""
        private = self._settle("private")
        if self._passes(private):
            return self._record(private, "private"), None
        is_hung = private.failure is not None and private.failure.is_timeout
        process = private if is_hung else self._settle("process", private)
        why = explained(private, self._real(private))
        if self._passes(process):
            return self._record(process, "process", private_failure=why.reason), None
        self._write("private")
        notes = (note for note in self._plan.notes if note.kind in _LIVE)
        details = [*why.details, *(f"perhaps because {note.text}" for note in notes)]
        if process is not private:
            other = explained(process, self._real(process)).reason
            also = "" if other == why.reason else f": {other}"
            details.append(f"it fails with namespace='process', too{also}")
        why = why._replace(details=tuple(details))
        failure = "\n".join((why.reason, *why.details))
        return self._record(private, "private", failure=failure), why

    def _settle(self, namespace: str, before: RunResult | None = None) -> RunResult:
        """The last verdict on a package that must do with what it holds.

        Args:
            namespace: in which namespace.
            before: the verdict on another namespace: the same again needs no more looking into.
        """
        verdict = self._round(namespace)
        if before is not None and verdict.failure == before.failure is not None:
            return verdict
        while not self._passes(verdict) and verdict.is_complete and self._rounds < _MAX_ROUNDS:
            if not (self._declare_operators(verdict) or self._find_missing(namespace)):
                break
            verdict = self._round(namespace)
        return verdict

    def _find_missing(self, namespace: str) -> bool:
        """Let the child ask for what it misses; tells whether anything was added."""
        before = len(self._resolver.added)
        for eagerness in (ProbeLevel.USES, ProbeLevel.PROBES):
            verdict = self._round(namespace, eagerness)
            if len(self._resolver.added) > before:
                return True
            if not verdict.has_skipped and verdict.is_complete:
                return False
        return False

    def _declare_operators(self, verdict: RunResult) -> bool:
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

    def _round(self, namespace: str, eagerness: ProbeLevel = ProbeLevel.NOTHING) -> RunResult:
        self._write(namespace)
        self._rounds += 1
        with phase(f"self-test {self._rounds}"), self._bench.open_preview() as package:
            job = Job(
                package,
                namespace,
                self._tried(),
                self._hidden,
                tuple(self._path),
                self._tree,
                eagerness,
                tuple(self._operators),
                tuple(self._tables),
            )
            verdict = perform(job, self._resolver.answer, self._limit)
            verdict = verdict.told_with(package, self._writer.path)
        passes = self._passes(verdict)
        _log.info(
            "self-test %d of %s, namespace %s: %s after %.1f seconds",
            self._rounds,
            self._writer.path,
            namespace,
            "passed" if passes else explained(verdict, self._real(verdict)).reason,
            verdict.seconds,
        )
        return verdict

    def _write(self, namespace: str) -> None:
        has_grown = len(self._resolver.added) > self._planned
        if has_grown:
            self._plan = self._bench.plan()
            self._planned = len(self._resolver.added)
        if has_grown or self._written is None:
            self._hidden = hidden_from(self._plan, self._ownership, self._scripts)
            self._path = clean_path(self._plan, self._hidden)
        if has_grown or self._written != namespace:
            self._bench.write(self._plan, namespace)
            self._written = namespace

    def _passes(self, verdict: RunResult) -> bool:
        return verdict.failure is None and not self._real(verdict)

    def _real(self, verdict: RunResult) -> list[Difference]:
        """The differences that the live model's own randomness does not explain."""
        for number, _ in verdict.differences:  # a reason to run the live model again
            if number not in self._again:
                self._again[number] = self._cases[number].differs_from_itself()
        return verdict.unexplained(self._tried())

    def _record(
        self,
        verdict: RunResult,
        namespace: str,
        *,
        private_failure: str | None = None,
        failure: str | None = None,
    ) -> SelfTestRecord:
        return SelfTestRecord(
            failure is None,
            namespace,
            self._tried(),
            self._rounds,
            time.monotonic() - self._started,
            tuple(self._resolver.added.values()),
            private_failure,
            failure,
            self._hidden.modules,
            self._hidden.distributions,
            tuple(self._operators),
            platform.python_version(),
            str(torch.__version__),
            verdict.touches,
            undeclared_imports=self._undeclared_imports(verdict.imported),
            unfilled_tables=verdict.unfilled,
        )

    def _undeclared_imports(
        self, imported: Iterable[tuple[str, str | None]]
    ) -> tuple[UndeclaredImport, ...]:
        """Return distributions that the self-test imported and that the package does not name.

        An extern module may import another library, as ``torch.utils.tensorboard`` does. Its
        imports are not the package's. But where that library is missing, the package does not
        load. Left out is what is installed in any case: what comes with torch and modpack, what
        the plan names, and what any of these or of those that are returned require.

        Args:
            imported: the modules, and by which module each was imported first, if that is known.
        """
        ownership, hidden = self._ownership, self._hidden.modules
        found: dict[str, tuple[Distribution, str, str | None]] = {}
        for module, by in imported:
            if not is_everywhere(module) and not any(is_within(module, root) for root in hidden):
                owner = ownership.distribution_of(module, self._locate(module))
                if owner is not None:
                    found.setdefault(normalized(owner.name), (owner, module, by))
        named = extern_owners(self._plan, ownership)
        known = {*always_installed(ownership), *named}
        known = known.union(*map(ownership.required_closure, named.values()))
        for name, (owner, _, _) in found.items():  # two may require each other: the first stays
            if name not in known:
                known |= ownership.required_closure(owner) - {name}
        return tuple(
            UndeclaredImport(owner.name, owner.version, module, by)
            for name, (owner, module, by) in sorted(found.items())
            if name not in known
        )

    def _tried(self) -> tuple[SelfTestCase, ...]:
        """The cases, with what is known by now of their randomness."""
        again = {number: self._again.get(number, []) for number in self._cases}
        return tuple(
            SelfTestCase(
                case.resource,
                number,
                case.global_hooks,
                not again[number],
                tuple(each.path for each in again[number] if each.is_structural),
            )
            for number, case in self._cases.items()
        )


def _warnings(source: str, failure: SelfTestError | None, record: SelfTestRecord) -> Iterator[str]:
    if failure is not None:
        yield str(failure)
    else:
        yield from _swallowed(record.mock_events)
        for table in record.unfilled_tables:
            remedy = "construct one object of the class after loading"
            yield f"the self-test passed, but {table}. Remedy: {remedy}"
    if record.operators:
        yield f"whoever loads {source} must first declare {', '.join(record.operators)}"


def _swallowed(touches: Sequence[MockEvent]) -> Iterator[str]:
    """What was used of mocked modules although the self-test passed: the package hides it."""
    used: dict[str, list[MockEvent]] = {}
    for touch in touches:
        if touch.kind is MockEventKind.USED:
            used.setdefault(touch.module, []).append(touch)
    for module, of_one in used.items():
        places = dict.fromkeys(
            f"{t.name} {t.operation}" + (f" at {t.place}" if t.place else "") for t in of_one
        )
        shown = listed(list(places), _MAX_PLACES)
        yield (
            f"the self-test passed, but the package used the mocked module {module!r} and caught "
            f"the exception: {shown}. Intern or extern {module!r}, or remove the use."
        )
