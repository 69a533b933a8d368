"""The judge of a finished package: it runs in clean interpreters and is compared with live objects.

The judge has descriptions of what the package must load and compute, and returns observations. It
does not know why the package has its contents, and does not change them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from modpack.archive.base import RecordDigest
from modpack.core.process import phase
from modpack.core.selftest import Difference, SelfTestCase, WaitingImports
from modpack.saving.copies import why_not_copyable
from modpack.selftest.explanations import Explanation, explain_failure
from modpack.selftest.module_compare import LiveModules, ModuleDifference
from modpack.selftest.object_rows import Row, compare_objects
from modpack.selftest.process import NO_RESOURCES, Job, ProbeLevel, Responder, RunResult, run_job
from modpack.selftest.reference import Case, find_tables_naming
from modpack.selftest.repeated import keep, key_of, recall, without_values

_MIN_TIMEOUT_SECONDS = 600.0
_MAX_SLOWDOWN = 30.0
"""A run may take this many times as long as the live run before it counts as hanging."""
_MAX_TRIALS = 4
_WORTH_WAITING = 30
"""The number of modules from which waiting imports save more than they cost to examine."""


class Judge:
    """Compares packages with the live objects that were saved.

    The jobs that the methods accept describe a finished package and the interpreter: the package
    file, namespace, hidden modules, import path, folder for code, and operators. The judge adds
    what to run and to describe.

    Args:
        cases: The cases to run, with the recorded outputs.
        objects: The descriptions of the saved objects.
        roots: The saved objects themselves.
        device: The device for the examples. None for those of the saved tensors.

    Attributes:
        objects: Package and resource of the saved objects.
        device: The device for the examples.
        call_signatures: Those of the cases. A run that passes adds varying dimensions.
        call_failures: Stated dimensions with which a call failed.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        objects: Mapping[tuple[str, str], tuple[Row, ...]],
        roots: Sequence[object],
        device: str | None,
    ) -> None:
        self.call_signatures = tuple(case.call_signature for case in cases)
        self.call_failures: tuple[str, ...] = ()
        self._cases = {case.records.number: case for case in cases}
        self.objects = tuple(objects)
        self.device = device
        self._described = tuple(objects.values())
        self._roots = roots
        models = {id(case.model): case.model for case in cases}
        # Once for each model: the search covers all modules of this process.
        tables = {table for model in models.values() for table in find_tables_naming(model)}
        self._tables = tuple(sorted(tables))
        self._reruns: dict[int, list[Difference]] = {}
        self._timeout = _MIN_TIMEOUT_SECONDS + sum(case.seconds * _MAX_SLOWDOWN for case in cases)
        self._key = ""

    @property
    def cases(self) -> tuple[SelfTestCase, ...]:
        """The cases, with the results of repeated runs of the live model."""
        again = {number: self._reruns.get(number, []) for number in self._cases}
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

    @property
    def has_equal_outputs(self) -> bool:
        """Whether there are cases, and each run that passed computed the recorded output."""
        return bool(self._cases) and not any(self._reruns.values())

    def recall(
        self, job: Job, modules: LiveModules, digests: Mapping[str, RecordDigest]
    ) -> RunResult | None:
        """Return the result of an earlier package that differs only in values, if it still passes.

        If there is none, the result of the next run is kept if it passes.

        Args:
            job: The package and the interpreter.
            modules: The live modules.
            digests: The digests of the package's records.
        """
        if self._cases:  # new weights have new outputs
            return None
        self._key = key_of(digests, self._complete(job, modules))
        known = recall(self._key)
        if known is None:
            return None
        live = map(without_values, self._described)
        result = self._compare_objects(live, known, modules)
        return result if self.passes(result) else None

    def run(self, job: Job, modules: LiveModules, respond: Responder) -> RunResult:
        """Run the package, and compare the loaded objects with the live ones.

        Args:
            job: The package and the interpreter.
            modules: The live modules.
            respond: Function that handles requests for missing resources.
        """
        # For one run: only packages that pass in their first run are kept.
        key, self._key = self._key, ""
        result = run_job(self._complete(job, modules), respond, self._timeout)
        result = self._compare_objects(self._described, result, modules)
        if result.copy_failure and any(map(why_not_copyable, self._roots)):
            result = result._replace(copy_failure="")  # as the live object
        if self.passes(result):
            if key:
                keep(key, result)
            if result.varied.call_signatures:
                self.call_signatures, self.call_failures = result.varied
        return result

    def passes(self, result: RunResult) -> bool:
        """Return whether the loaded objects and their outputs are those of the live ones."""
        wrong = any(each.is_error for each in result.changed)
        return result.failure is None and not wrong and not self._unexplained(result)

    def explain(self, result: RunResult) -> Explanation | None:
        """Return the reason why a run did not pass, or None."""
        return None if self.passes(result) else explain_failure(result, self._unexplained(result))

    def compare_modules(
        self, job: Job, modules: LiveModules, result: RunResult
    ) -> list[ModuleDifference]:
        """Return the differences between the live modules and those that a run has loaded.

        Args:
            job: The package and the interpreter, for further runs.
            modules: The live modules.
            result: The result of the run.
        """

        def describe_again(is_new: bool) -> Sequence[Row]:
            again = self._complete(job, modules)._replace(
                cases=(), call_signatures=(), in_new_interpreter=is_new
            )
            with phase("comparing modules"):
                return run_job(again, lambda _: NO_RESOURCES, self._timeout).modules

        return modules.compare(result.modules, describe_again)

    def find_waiting(
        self, job: Job, modules: LiveModules, result: RunResult
    ) -> WaitingImports | str | None:
        """Return the imports that may wait, the reason why none can, or None if none has to.

        A trial run lets all of them wait. If it passes, those that still wait at its end may wait
        in the package. A module whose import changes another one is imported with that one,
        which is tried again. If a waiting import fails, such as one in a circle that the original
        order avoids, nothing waits in the modules of the circle in the next trial.

        Args:
            job: The package and the interpreter.
            modules: The live modules.
            result: The result of a run that passed.
        """
        seen = result.observations
        loaded = (*seen.modules, *seen.example_modules)
        if not self._cases or len(loaded) + len(result.imported) < _WORTH_WAITING:
            return None
        companions: set[tuple[str, str]] = set()
        eager: set[str] = set()
        # A companion is imported earlier than before, and may itself change other modules.
        for _ in range(_MAX_TRIALS):
            trial = self._complete(job, modules)._replace(
                call_signatures=(),
                objects=(),
                modules={},
                tables=(),
                trial=WaitingImports(
                    dict.fromkeys(sorted(eager), ()), loaded, tuple(sorted(companions))
                ),
            )
            with phase("trying waiting imports"):
                tried = run_job(trial, lambda _: NO_RESOURCES, self._timeout)
            found = tried.waiting
            if tried.failure is not None or self._unexplained(tried) or found.problem:
                if not eager.issuperset(found.failed):
                    eager.update(found.failed)
                    continue
                why = tried.failure.text if tried.failure is not None else found.problem
                return why or "the output differs if they do"
            changed = {module for module, _ in set(found.effects) - companions}
            companions.update(found.effects)
            # A module that the examples did not load needs no trial with its companions.
            if changed.isdisjoint(("", *found.modules)):
                return WaitingImports(
                    found.modules, tuple(sorted(loaded)), tuple(sorted(companions))
                )
        return "too many of them change other modules"

    def _complete(self, job: Job, modules: LiveModules) -> Job:
        """Return a job with what to run and to describe. Runs with requests decide nothing."""
        is_deciding = job.probe_level is ProbeLevel.NOTHING
        return job._replace(
            cases=self.cases,
            tables=self._tables,
            call_signatures=self.call_signatures if is_deciding else (),
            objects=self.objects,
            modules=modules.names if is_deciding else {},
            device=self.device,
        )

    def _compare_objects(
        self, live: Iterable[Sequence[Row]], result: RunResult, modules: LiveModules
    ) -> RunResult:
        """Return a result with the parts of loaded objects that differ from the live ones."""
        changed = tuple(
            difference
            # The run may have failed before it described all objects.
            for saved, loaded in zip(live, result.descriptions, strict=False)
            for difference in compare_objects(saved, loaded, modules.is_of_mock)
        )
        return result._replace(changed=changed)

    def _unexplained(self, result: RunResult) -> list[Difference]:
        """Return the differences that the live model's own randomness does not explain."""
        for number, _ in result.differences:  # each justifies one more run of the live model
            if number not in self._reruns:
                self._reruns[number] = self._cases[number].compare_with_rerun()
        return result.unexplained_differences(self.cases)
