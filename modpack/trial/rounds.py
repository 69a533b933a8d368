"""The trial: rounds in clean interpreters until the package passes, or the reason is known."""

from __future__ import annotations

import logging
import platform
import re
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from modpack.core.plan import NoteKind, Plan
from modpack.core.planjson import Json
from modpack.core.progress import phase
from modpack.core.trialrecord import TrialRecord, TriedCase
from modpack.planning.ownership import InstalledOwnership
from modpack.planning.planner import Planner
from modpack.trial.answering import Answering
from modpack.trial.comparing import Difference
from modpack.trial.explaining import Explanation, explained
from modpack.trial.hiding import Hidden, clean_path, hidden_from
from modpack.trial.operators import declared_operators, schemas_of
from modpack.trial.outside import imported_outside
from modpack.trial.process import Verdict, perform
from modpack.trial.reference import Case
from modpack.trial.registries import tables_naming

__all__ = ["Bench", "Trial"]

_log = logging.getLogger("modpack")

_LIVE = (NoteKind.LIVE_CHANGED, NoteKind.LIVE_STATE, NoteKind.EXTERN_PATCHED)
"""What is known to differ between the live process and the package."""
_STRICT, _USES, _PROBES = 0, 1, 2
"""What the child asks for; see :class:`modpack.replaying.asking.Eagerness`."""
_MOST_ROUNDS = 24
_SHORTEST_LIMIT_SECONDS = 600.0
_PATIENCE = 30.0
"""Times the live run: how long a run may take before it counts as hanging."""
_OPERATOR = re.compile(r"\b[A-Za-z_]\w*::[A-Za-z_]\w*")
_ABSENT_OPERATOR = re.compile(r"'_OpNamespace' '(\w+)' object has no attribute '(\w+)'")
"""What torch says of ``torch.ops.mylib.add`` where nobody declared it."""


class Bench(Protocol):
    """Where the package under trial is made, again and again."""

    def plan(self) -> Plan:
        """What it will hold by now; raises what an exporter raises for problems."""

    def write(self, plan: Plan, namespace: str) -> None:
        """Write that, in place of what was written for an earlier round."""

    def previewed(self) -> AbstractContextManager[str]:
        """The complete package, in a temporary file."""


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
        bench: Bench,
        planner: Planner,
        ownership: InstalledOwnership,
        scripts: Sequence[str] = (),
    ) -> None:
        self.plan = plan
        self.explanation: Explanation | None = None
        self._source = source
        self._cases = {case.records.number: case for case in cases}
        self._bench = bench
        self._ownership = ownership
        self._scripts = tuple(scripts)
        self._answering = Answering(planner)
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

    # -- rounds ------------------------------------------------------------------------------

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
        before = len(self._answering.added)
        for eagerness in (_USES, _PROBES):
            verdict = self._round(namespace, eagerness)
            if len(self._answering.added) > before:
                return True
            if not verdict.has_skipped and verdict.is_complete:
                return False
        return False

    def _declare_operators(self, verdict: Verdict) -> bool:
        """Declare those operators of this process that a failure speaks of."""
        if verdict.failure is None:
            return False
        told = "\n".join((verdict.failure.text, *verdict.failure.trace))
        missing = declared_operators() - verdict.operators
        named = {f"{space}::{name}" for space, name in _ABSENT_OPERATOR.findall(told)}
        wanted = sorted(missing.intersection(named.union(_OPERATOR.findall(told))))
        schemas = [each for each in schemas_of(wanted) if each not in self._operators]
        self._operators += schemas
        return bool(schemas)

    def _round(self, namespace: str, eagerness: int) -> Verdict:
        self._write(namespace)
        self._rounds += 1
        with phase(f"trial run {self._rounds}"), self._bench.previewed() as package:
            job: dict[str, Json] = {
                "package": package,
                "namespace": namespace,
                "cases": [case.to_json() for case in self._cases.values()],
                "hidden": self._hidden.to_json(),
                "path": list(self._path),
                "eagerness": eagerness,
                "operators": list(self._operators),
                "tree": self._tree,
                "tables": [list(table) for table in self._tables],
            }
            verdict = perform(job, self._answering.answer, self._limit)
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
        has_grown = len(self._answering.added) > self._planned
        if has_grown:
            self.plan = self._bench.plan()
            self._planned = len(self._answering.added)
        if has_grown or self._written is None:
            self._hidden = hidden_from(self.plan, self._ownership, self._scripts)
            self._path = clean_path(self.plan, self._hidden)
        if has_grown or self._written != namespace:
            self._bench.write(self.plan, namespace)
            self._written = namespace

    # -- verdicts ----------------------------------------------------------------------------

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
            tuple(self._answering.added.values()),
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
